#!/bin/sh
# usage: make -nB V=1 all | compdb.sh
# One entry of a compilation database for each line that compiles one of our files.
awk -v dir="$(pwd)" '
    BEGIN { print "[" }
    / -c [^ ]+\.c -o / {
        file = $0
        sub(/.* -c /, "", file)
        sub(/ .*/, "", file)
        command = $0
        sub(/^[ \t]+/, "", command)
        gsub(/\\/, "\\\\", command)
        gsub(/"/, "\\\"", command)
        gsub(/\047/, "", command)
        printf "%s{\"directory\": \"%s\", \"file\": \"%s\",\n \"command\": \"%s\"}", (n++ ? ",\n" : ""), dir, file, command
    }
    END { print "\n]" }'
