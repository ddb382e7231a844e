# Two "hosts" for a benchmark to source: network namespaces $town-0 and $town-1
# joined by a wire, 10.77.8.1 and 10.77.8.2. Needs root, ip(8), tc(8).
#   need_hosts NAME      ends the script with 77 where there can be none
#   build_hosts WIRE     delay: every packet takes $delay_us, each way
#                        rate: $rate each way
#                        both: both
#                        none: a bare pair of interfaces
#                        and says in $how by what means
#   raze_hosts           takes it all away
#   on_host HOST COMMAND...
# Delay is netem's; on a kernel without it, bench/delay.c's, a process that
# shares the cores with the ranks. Rate is tbf's.
delay_us=${DELAY_US:-1000} rate=${RATE:-1gbit}
town=oarh$$ relay= how=

need_hosts() { # NAME
    [ "$(id -u)" = 0 ] || { echo "$1 needs root"; exit 77; }
    for tool in ip tc; do
        command -v $tool >/dev/null || { echo "there is no $tool(8)"; exit 77; }
    done
}

raze_hosts() {
    [ -z "$relay" ] || { kill "$relay"; wait "$relay" || true; } 2>/dev/null
    relay=
    for host in 0 1; do
        ip netns del "$town-$host" 2>/dev/null || true
    done
}

give_addresses() {
    for host in 0 1; do
        ip -n "$town-$host" addr add 10.77.8.$((host + 1))/24 dev oarv
        ip -n "$town-$host" link set oarv up "$@"
    done
}

join_by_veth() {
    ip -n "$town-0" link add oarv type veth peer name oarv netns "$town-1"
    give_addresses
    how="bare veth"
}

shape() { # TC-ARGUMENTS...
    for host in 0 1; do
        tc -n "$town-$host" qdisc add dev oarv root "$@" 2>/dev/null || return 1
    done
}

limit_rate() {
    shape tbf rate "$rate" burst 128kb latency 100ms ||
        { echo "this kernel has no tbf"; return 1; }
    how="$how, tbf $rate"
}

join_by_relay() {
    local ready
    exec {from_relay}< <(exec "$build/bench/delay" "$town-0" "$town-1" "$delay_us")
    relay=$!
    read -r ready <&"$from_relay"
    give_addresses mtu 65000 txqueuelen 10000
    how="bench/delay.c $delay_us us"
}

join_by_delay() { # MORE-ARGUMENTS-OF-NETEM...
    join_by_veth
    how="netem ${delay_us} us $*"
    shape netem delay "${delay_us}us" limit 100000 "$@" && return
    ip -n "$town-0" link del oarv
    join_by_relay
}

build_hosts() { # WIRE
    for host in 0 1; do
        ip netns add "$town-$host"
        ip -n "$town-$host" link set lo up
    done
    case $1 in
    delay) join_by_delay ;;
    both)
        join_by_delay rate "$rate"
        [ -z "$relay" ] || limit_rate
        ;;
    rate) join_by_veth && limit_rate ;;
    none) join_by_veth ;;
    *) echo "there is no wire \"$1\"" >&2; return 1 ;;
    esac
}

# The cores of a host: its half of those that there are, so that hosts do not
# slow each other down and know how many they have.
cores() { # HOST
    local n
    n=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
    if [ "$n" -lt 2 ]; then
        echo 0
    else
        echo $(($1 * (n / 2)))-$((($1 + 1) * (n / 2) - 1))
    fi
}

on_host() { # HOST COMMAND...
    local host=$1
    shift
    taskset -c "$(cores "$host")" ip netns exec "$town-$host" "$@"
}
