# bash completion for oarsong(1). Commands and options are read from the help of
# the command that is being typed, so they are always those of that version.

_oarsong_options() { # OARSONG COMMAND: one option a line
    "$1" "$2" --help 2>/dev/null | sed -n 's/^  *\(-.*\)/\1/p' |
        sed 's/   *.*//' | grep -oE '(^|[ ,])--?[a-z][a-z0-9-]*' | tr -d ' ,'
    echo --help
}

_oarsong_commands() { # OARSONG
    "$1" --help 2>/dev/null | sed -n 's/^  oarsong \([a-z]*\) .*/\1/p'
}

_oarsong_kinds() { # OARSONG
    "$1" bench --help 2>/dev/null | sed -n 's/^KIND is one of //p'
}

_oarsong_subcommands() { # OARSONG COMMAND
    "$1" "$2" --help 2>/dev/null |
        sed -n "s/^  oarsong $2 \([a-z]*\) .*/\1/p"
}

_oarsong_schedules() { # OARSONG
    "$1" schedule --help 2>/dev/null | sed -n 's/^gpipe, /&/p' | tr -d ',.'
}

# Prints what may follow an option, or nothing where that is not a fixed list.
_oarsong_values() { # OPTION
    case $1 in
    --backend) echo native shm tcp sim self mpi gloo ucc nccl ipc hybrid ;;
    --bind-to) echo core socket numa none ;;
    --numa-binding) echo node socket exclusive core-complex ;;
    --rdzv-backend) echo c10d static ;;
    --dtype) echo f32 f64 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 bool ;;
    --op) echo sum avg prod min max band bor bxor ;;
    --memory) echo shared private ;;
    --device) echo cpu cuda ;;
    --format) echo nccl osu csv json text safetensors hf llmc svg chrome ;;
    esac
}

_oarsong() {
    local oarsong=$1 word=$2 before=$3 command=${COMP_WORDS[1]} values
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W \
            "$(_oarsong_commands "$oarsong") --help --version" -- "$word")
        return
    fi
    values=$(_oarsong_values "$before")
    if [ -n "$values" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W \
            "$(_oarsong_options "$oarsong" "$command")" -- "$word")
    elif [ "$command" = bench ] && [ "$COMP_CWORD" = 2 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_oarsong_kinds "$oarsong")" \
            -- "$word")
    elif [[ $command == @(ckpt|schedule) ]] && [ "$COMP_CWORD" = 2 ]; then
        mapfile -t COMPREPLY < <(compgen -W \
            "$(_oarsong_subcommands "$oarsong" "$command")" -- "$word")
    elif [ "$command" = schedule ] && [ "$COMP_CWORD" = 3 ]; then
        mapfile -t COMPREPLY < <(compgen -f -W \
            "$(_oarsong_schedules "$oarsong")" -- "$word")
    elif [ "$command" = autopsy ]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    fi # else: files, by -o default
}

complete -o default -F _oarsong oarsong
