# Makes .venv, with the project in it: sourced by demo and test, in the repository's root.
# All it prints goes to standard error. It keeps to the bash 3.2 of macOS.

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# The first Python on the PATH that is new enough.
find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$name"
            return
        fi
    done
    fail "No Python 3.11 or newer was found: install one (python.org, Homebrew or apt have it)."
}

# install_project [EXTRA]: into .venv, unless this very pyproject.toml was installed here before.
install_project() {
    local python stamp=".venv/installed${1:+-$1}" key="$PWD
$(cat pyproject.toml)"
    # The Python that .venv was made with may have gone since, with an upgrade of Homebrew's say.
    if [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && .venv/bin/python -c ''; then return; fi

    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        python=$(find_python)
        check_platform "$python"
        say "Making .venv with $("$python" --version 2>&1) ..."
        "$python" -m venv --clear .venv >&2 ||
            fail "Python's venv module is incomplete (on Debian: apt install python3-venv)."
    fi
    say "Installing dflash-mlx${1:+ and its $1 extras} into .venv (once; a minute or two) ..."
    .venv/bin/python -m pip install -qq --disable-pip-version-check --editable ".${1:+[$1]}" >&2 ||
        fail "The installation failed, see above: is the package index reachable? Then run this again."
    printf '%s\n' "$key" | tee .venv/installed "$stamp" >/dev/null
}

# On a platform without MLX the program's own sentence is better than pip's.
check_platform() {
    PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 "$1" >&2 -c '
import sys
from dflash_mlx.backend import platform_problem, this_platform
problem = platform_problem(*this_platform())
sys.exit(problem and "error: " + problem)' || exit 1
}
