#!/usr/bin/env bash
# matrix: engine
# seconds: 20
# The C API as docs/guide/embedding-c.md has it: its programs in C and Python are compiled and run as they stand on the page, with the shared
# and the static library; every call a thousand times, each on a disk that is opened and closed, under AddressSanitizer for each engine and under
# valgrind.
. "$(dirname "$0")/lib.sh"

SOURCES=$(cd "$HERE/../.." && pwd)
LIBRARY=$(dirname "$HEADWORKS")
CRATE=$SOURCES/crates/headworks-c
if [ ! -e "$LIBRARY/libheadworks_c.so" ]; then
    skip "the C API" "there is no libheadworks_c.so beside $HEADWORKS: cargo build --release -p headworks-c"
    exit 0
fi
cd "$DIR" || exit 1
# Valgrind reads the lines of a library before it runs it.
strip --strip-debug -o libheadworks_c.so "$LIBRARY/libheadworks_c.so" || exit 1
compile() { # OUTPUT SOURCE OPTIONS...
    cc -std=c11 -pedantic -Wall -Wextra -Werror -O1 -g -I"$CRATE/include" "$2" -o "$1" "${@:3}"
}
shared=(-L"$DIR" -lheadworks_c "-Wl,-rpath,$DIR")

# Every call, round after round.
all=file:path=$IMAGES/c.img,size=1M
rounds=${ROUNDS:-1000}
sanitized=(-fsanitize=address,undefined -fno-sanitize-recover)
# Its shadow has a fixed place, which a kernel with much randomness of addresses may give away; and it looks for leaks by ptrace.
fixed=()
! setarch -R true 2>/dev/null || fixed=(setarch -R)
echo 'int main(void) { return 0; }' >nothing.c
if compile nothing nothing.c "${sanitized[@]}" 2>asan.log && "${fixed[@]}" ./nothing 2>asan.log; then
    compile c_api.asan "$HERE/c_api.c" "${sanitized[@]}" "${shared[@]}"
    check "every call, $rounds opens and closes, AddressSanitizer" "${fixed[@]}" ./c_api.asan "$all" "$rounds" "$ENGINE"
else
    skip "AddressSanitizer" "it does not work here: $(head -n 1 asan.log)"
fi
[ "$ENGINE" = threads ] || exit $BAD

# The page's program of a language, without its fences.
on_page() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$SOURCES/docs/guide/embedding-c.md" | sed '1d;$d'; } # LANGUAGE
for program in c:pattern.c python:blocks.py; do
    on_page "${program%%:*}" >"${program#*:}"
    check "${program#*:} of the sources is that of the page" diff "${program#*:}" "$CRATE/examples/${program#*:}"
done
check "the page's program has at most 60 lines" test "$(wc -l <pattern.c)" -le 60
check "C++ takes the header" c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ -include "$CRATE/include/headworks.h" /dev/null

check "pattern.c compiles" compile pattern pattern.c "${shared[@]}"
check "it writes a new image" ./pattern file:path="$IMAGES/a.img",size=5M
# The place of a part, in parts of 64 KiB, is its byte.
pattern() { python3 -c 'import sys; sys.stdout.buffer.write(b"".join(bytes([n % 256]) * 65536 for n in range(80)))'; }
check "the image has the pattern" cmp "$IMAGES/a.img" <(pattern)
if [ -e "$LIBRARY/libheadworks_c.a" ]; then
    strip --strip-debug -o libheadworks_c.a "$LIBRARY/libheadworks_c.a"
    check "it compiles with the static library" compile pattern-static pattern.c libheadworks_c.a -lm -ldl -lpthread
    check "and runs" ./pattern-static mem:size=1M
    rm -f libheadworks_c.a pattern-static
fi

# As it is installed.
install_library() { # what `make library` has built stands for any build
    make -s -C "$SOURCES" "$1" LIBRARY="$LIBRARY/libheadworks_c" DESTDIR="$DIR/root" PREFIX=/usr STRIP=true 2>&1
}
if command -v make >/dev/null && [ -e "$LIBRARY/libheadworks_c.a" ]; then
    check "make install-library" install_library install-library
    check "a program compiles with what it installs" cc -I"$DIR/root/usr/include" pattern.c -o pattern-installed -L"$DIR/root/usr/lib" -lheadworks_c
    check "and runs" env LD_LIBRARY_PATH="$DIR/root/usr/lib" ./pattern-installed mem:size=1M
    check "headworks.pc names the version of the library" \
        grep -qx "Version: $(./pattern mem:size=1M | sed 's/.*version //')" "$DIR/root/usr/lib/pkgconfig/headworks.pc"
    check "make uninstall-library leaves no file" eval 'install_library uninstall-library && [ -z "$(find "$DIR/root" -type f)" ]'
    rm -rf root pattern-installed
fi

# What a program is told.
refused() { # WORDS SPEC
    local said
    said=$(./pattern "$2" 2>&1) && return 1
    echo "$said"
    grep -q -- "$1" <<<"$said"
}
check "a wrong SPEC is refused with a sentence" refused 'hw_open: Invalid argument: .*device type' mum:size=1M
serve --control "$CONTROL" "file:path=$IMAGES/a.img"
check "an image that a server has open is refused" refused 'a.img' "$IMAGES/a.img"
stop_server
serve --cache 16M "file:path=$IMAGES/a.img,cache=writeback"
check "a client writes" qemu-io -f raw -c 'write -P 9 0 64k' "$URI"
stop_with KILL
check "an image without a killed server's writes is refused" refused 'Structure needs cleaning: .*a.img' "$IMAGES/a.img"
check "unless that is wanted" ./pattern "file:path=$IMAGES/a.img,on-unclean=serve"

python=$(for one in python3 "$PYTHON" /usr/bin/python3; do "$one" -c 'import cffi' 2>/dev/null && echo "$one" && break; done)
if [ -n "$python" ]; then
    check "blocks.py runs" "$python" "$CRATE/examples/blocks.py" file:path="$IMAGES/b.img",size=4M "$DIR/libheadworks_c.so"
    check "the image has its blocks" python3 - "$IMAGES/b.img" <<'PY'
import sys
data = open(sys.argv[1], "rb").read()
assert data == b"".join(n.to_bytes(8, "little") * 512 for n in range(1024)), "the image has other blocks"
PY
else
    skip "blocks.py" "no python has cffi"
fi


# It stops all threads while one waits in io_uring. Values that are not initialised are not looked for: compiled Rust may test the content of an
# absent Option before it tests whether there is one.
memcheck() {
    valgrind --log-file=memcheck.log --error-exitcode=9 --undef-value-errors=no --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite ./c_api "$all" "$rounds" threads && return
    grep -v '^--' memcheck.log
    return 1
}
check "c_api.c compiles" compile c_api "$HERE/c_api.c" "${shared[@]}"
if command -v valgrind >/dev/null; then
    check "every call, $rounds opens and closes, valgrind" memcheck
else
    skip "valgrind" "there is no valgrind"
fi
exit $BAD
