# Completion of dtrun, dtverify, dtplan and dtreport for bash. make install puts it where bash-completion finds it; without
# that: source tools/completion.bash
#
# The options are those of the program's --help: nothing is listed twice. The option before the cursor decides what is offered
# for its value: files, directories, words that the help names, or nothing.
_dt_complete() {
    local program=$1 word=$2 before=$3 i help values
    COMPREPLY=()
    # behind the program that dtrun or dtverify start, its own arguments: files
    case ${program##*/} in
    dtrun | dtverify)
        for ((i = 1; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --) i=$((i + 1)) && break ;;
            -t | --tee | --no-python | --standalone | --insecure | --quiet | --help | --version) ;;
            -*) i=$((i + 1)) ;; # its value
            *) break ;;
            esac
        done
        if ((i < COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return
        fi
        ;;
    esac
    case $before in
    --log-dir) mapfile -t COMPREPLY < <(compgen -d -- "$word") && return ;;
    -o | --output | --token-file | --hosts-file | --dtrun | --profile | --cluster)
        mapfile -t COMPREPLY < <(compgen -f -- "$word") && return ;;
    --model) values=$("$program" --models 2>/dev/null) ;;
    --device) values=$("$program" --devices 2>/dev/null | awk '!NF { exit } NR > 1 { print $1 }') ;;
    --precision) values='f32 amp o2' ;;
    --optimizer) values='sgd momentum adam' ;;
    --serving) values='apart beside byteps' ;;
    esac
    if [ -n "$values" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
        return
    fi
    if [[ $word == -* ]]; then
        help=$("$program" --help 2>/dev/null | grep -oE '(^|[ ,(|])--[a-z][a-z-]*' | grep -oE -- '--[a-z-]+' | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "$help" -- "$word")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -o bashdefault -F _dt_complete dtrun dtverify dtplan dtreport
