#!/usr/bin/env bash
# Gives each client of a chaos run a network namespace. On command, drops packets between a namespace and the machine.
#
# usage: network.sh TAG COUNT
# Prints `NAMESPACE ADDRESS` for each client, with the machine's address as the client sees it. Fails if namespaces are
# not available. Then it answers `ok` to each line on stdin:
#   drop N requests|replies|both     silently drops what client N (from 0) sends, receives, or both
#   restore N                        stops dropping packets of client N
# When stdin ends, the run is over or its process has ended in some way. Everything is then removed.
#
# A packet is dropped by addressing it to a network card that does not exist, without a firewall.
set -euo pipefail
shopt -s inherit_errexit

tag=$1 count=$2
nobody=02:00:00:00:00:01
clients=()

# A signal for the whole process group must not end this script, which cleans up.
trap '' HUP INT
trap clean_up EXIT

namespace() { echo "zk-chaos-$tag-$1"; }
card() { echo "zkc$tag.$1"; }

clean_up() {
  local client
  for client in "${clients[@]}"; do
    ip link delete "$(card "$client")" 2>/dev/null || true
    ip netns delete "$(namespace "$client")" 2>/dev/null || true
  done
}

# A part of the benchmark range (RFC 2544) that no other run uses.
find_net() {
  local try
  for try in {0..99}; do
    net=198.18.$(((tag + try) % 250))
    [[ -n $(ip -o route show root "$net.0/24") ]] || return 0
  done
  return 1
}

outer() { echo "$net.$((4 * $1 + 1))"; }
inner() { echo "$net.$((4 * $1 + 2))"; }

add_client() {
  local client=$1 space card
  space=$(namespace "$client") card=$(card "$client")
  clients+=("$client")
  ip netns add "$space"
  ip link add "$card" type veth peer name eth0 netns "$space"
  ip address add "$(outer "$client")/30" dev "$card"
  ip -n "$space" address add "$(inner "$client")/30" dev eth0
  ip link set "$card" up
  ip -n "$space" link set lo up
  ip -n "$space" link set eth0 up
  outer_card[client]=$(ip -o link show dev "$card" | sed -nE 's/.* link\/ether ([0-9a-f:]+) .*/\1/p')
  inner_card[client]=$(ip -n "$space" -o link show dev eth0 | sed -nE 's/.* link\/ether ([0-9a-f:]+) .*/\1/p')
  aim_requests "$client" "${outer_card[client]}"
  aim_replies "$client" "${inner_card[client]}"
}

aim_requests() {
  ip -n "$(namespace "$1")" neighbour replace "$(outer "$1")" lladdr "$2" dev eth0 nud permanent
}

aim_replies() {
  ip neighbour replace "$(inner "$1")" lladdr "$2" dev "$(card "$1")" nud permanent
}

outer_card=() inner_card=()
find_net
for ((client = 0; client < count; client++)); do add_client "$client"; done
for ((client = 0; client < count; client++)); do echo "$(namespace "$client") $(outer "$client")"; done

while read -r verb client what; do
  case $verb in
    drop)
      [[ $what == replies ]] || aim_requests "$client" "$nobody"
      [[ $what == requests ]] || aim_replies "$client" "$nobody"
      ;;
    restore)
      aim_requests "$client" "${outer_card[client]}"
      aim_replies "$client" "${inner_card[client]}"
      ;;
  esac
  echo ok
done
