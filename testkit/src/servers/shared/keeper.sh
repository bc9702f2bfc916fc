# Runs one server for as long as a test process uses it, and then deletes its directory.
#
#   sh -c keeper.sh keeper DIR GRACE SIGNAL PROGRAM [ARG]...
#
# Standard input is the read end of the pipe DIR/users. Each test process that uses the server holds
# the pipe's write end open, and has written a line on joining; the kernel closes it however the
# process ends, so that the end of the input means: no process uses the server.
dir=$1
grace=$2
signal=$3 # ends the server at once
shift 3
# The search path of a test may be of any kind.
PATH=$PATH:/usr/bin:/bin
# A terminal that is closed, or a session that ends, must not leave the server behind.
trap '' HUP INT TERM

(
    "$@" >"$dir/server.log" 2>&1 &
    server=$!
    told=
    trap 'told=yes; kill -$signal $server' USR1
    echo $server >"$dir/pid"
    wait $server
    code=$?
    # The signal ended only the wait.
    [ -z "$told" ] || wait $server
    # From here on the process id may be another process's.
    trap '' USR1
    echo $code >"$dir/exited"
) </dev/null &
waiter=$!

idle=
while :; do
    if read -r _; then
        idle=
    elif [ -z "$idle" ]; then
        # The next test program of the same run may be about to start.
        sleep "$grace"
        idle=yes
    else
        # A process joins by its line first, and then looks for this file. One that wrote its line
        # before the file was moved is still counted here; any other finds no server.
        mv "$dir/open" "$dir/closed" 2>/dev/null
        read -r _ || break
        mv "$dir/closed" "$dir/open" 2>/dev/null
        idle=
    fi
done

# By a signal and not by the file with the process id: the directory may have been deleted.
kill -USR1 $waiter 2>/dev/null
wait
rm -rf "$dir"
