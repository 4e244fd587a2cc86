"""Locks and unlocks with kazoo, on commands from standard input, which benches/compare/peer.rs describes."""

import logging
import os
import sys
import threading
import time

from kazoo.client import KazooClient

SESSION_TIMEOUT = 60.0


class Peer:
    def __init__(self):
        self.clients = []
        self.locks = []

    def obey(self, words):
        if words[0] == "prepare":
            self.prepare(words[1], int(words[2]), words[3], words[4])
            return "ready"
        if words[0] == "run":
            return self.run(float(words[1]))
        for client in self.clients:
            client.stop()
            client.close()
        self.clients, self.locks = [], []
        return "ended"

    def prepare(self, layout, count, connect, directory):
        for number in range(count):
            if number == 0 or layout == "sessions":
                client = KazooClient(hosts=connect, timeout=SESSION_TIMEOUT)
                client.start(timeout=30)
                self.clients.append(client)
            own = f"{directory}-{number}" if layout == "directories" else directory
            self.locks.append(self.clients[-1].Lock(own))

    def run(self, seconds):
        gate = threading.Barrier(len(self.locks))
        runs = []

        def work(lock):
            gate.wait()
            start, cycles = time.perf_counter(), 0
            while time.perf_counter() < start + seconds:
                lock.acquire()
                lock.release()
                cycles += 1
            runs.append((start, time.perf_counter(), cycles))

        threads = [threading.Thread(target=work, args=(lock,)) for lock in self.locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(runs) < len(threads):
            os._exit(1)
        took = max(end for _, end, _ in runs) - min(start for start, _, _ in runs)
        return f"{sum(cycles for _, _, cycles in runs)} {took:.6f} 0"


def main():
    logging.basicConfig(level=logging.ERROR)
    peer = Peer()
    for line in iter(sys.stdin.readline, ""):
        print(peer.obey(line.split()), flush=True)
    os._exit(0)


main()
