"""Contends for locks with kazoo, one thread for each contender, as tests/interop/referee.rs describes.

Arguments: the servers, the referee's port, the session timeout in milliseconds, and a
PAIR:NAME:KIND for each thread.
"""

import logging
import os
import socket
import sys
import threading
import traceback

from kazoo.client import KazooClient


class Referee:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("r")

    def ask(self, question):
        self.socket.sendall(f"{question}\n".encode())
        answer = self.answers.readline().strip()
        if not answer:
            os._exit(0)
        return answer

    def hold(self):
        self.ask("enter")
        self.ask("leave")


def contend(servers, port, timeout, pair, name, kind):
    referee = Referee(port)
    client = KazooClient(hosts=servers, timeout=timeout)
    client.start(timeout=60)
    directory = f"/interop/{pair}"
    locks = {
        "lock": lambda: {"write": client.Lock(directory)},
        "patterns": lambda: {"write": client.Lock(directory, extra_lock_patterns=["-lock-"])},
        "read-write": lambda: {"read": client.ReadLock(directory), "write": client.WriteLock(directory)},
        "election": lambda: {},
    }[kind]()
    election = client.Election(directory)
    referee.ask(f"hello {pair} {name}")
    for mode in iter(lambda: referee.ask("next"), "stop"):
        if kind == "election":
            election.run(referee.hold)
        else:
            with locks[mode]:
                referee.hold()


def run(*arguments):
    try:
        contend(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main():
    logging.basicConfig(level=logging.ERROR)
    servers, port, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) / 1000
    for contender in sys.argv[4:]:
        arguments = (servers, port, timeout, *contender.split(":"))
        threading.Thread(target=run, args=arguments).start()


main()
