# Shared by tools/quickstart and tools/test: makes or reuses .venv. To be sourced, by bash with pipefail.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT" || exit 1

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# The first interpreter that is new enough: $PYTHON, else the usual names.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.11 python3.12 python3.13 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python >= 3.11 found; install one, or name it: PYTHON=/path/to/python $0"
}

# setup_venv EXTRAS: .venv with the project (editable) and EXTRAS, at the versions of constraints.txt.
# Does nothing when the last successful installation had the same inputs.
setup_venv() {
    local extras="$1" python inputs stamp=".venv/installed-$1"
    [ "$(uname -s)" = Linux ] || fail "only Linux is supported (memfd, CPU affinity, prctl)"
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python="$(find_python)" || exit 2
        say "making .venv with $("$python" --version)"
        "$python" -m venv --clear .venv ||
            fail "making .venv failed (on Debian and Ubuntu: apt-get install python3-venv)"
    fi
    inputs="$ROOT $(cat pyproject.toml constraints.txt | sha256sum)"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$inputs" ]; then
        say "reusing .venv: [$extras] is installed, at the versions of constraints.txt"
    else
        say "installing rlinf_async[$extras] into .venv, at the versions of constraints.txt"
        .venv/bin/python -m pip install --progress-bar off -c constraints.txt -e ".[$extras]" |
            sed '/^Requirement already satisfied/d' ||
            fail "the installation failed; the lines above say why"
        printf '%s\n' "$inputs" >"$stamp"
    fi
    say "versions in use"
    .venv/bin/python -m pip list --format freeze |
        grep -iE '^(numpy|torch|mujoco|gymnasium|pyzmq|orjson|uvloop|tyro|pytest|mypy|ruff)=='
    # Idle threads of OpenMP and BLAS spin, which is dear where cores are few.
    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
}

# Camera images need OpenGL without a screen, which no Python package brings.
GL_PACKAGES="libegl1 libegl-mesa0 libgl1-mesa-dri libopengl0 libosmesa6"

# setup_gl: installs them where it may; else says what is missing, and images are skipped.
setup_gl() {
    if ldconfig -p | grep -q libEGL.so.1 && ldconfig -p | grep -q libOSMesa.so; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing OpenGL for camera images: $GL_PACKAGES"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $GL_PACKAGES; } \
            >/dev/null || say "that failed: whatever draws images is skipped"
    else
        say "no OpenGL for camera images, whatever draws them is skipped; to have it, as root:"
        say "apt-get install $GL_PACKAGES"
    fi
}
