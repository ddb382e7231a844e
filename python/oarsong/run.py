# SPDX-License-Identifier: Apache-2.0
"""python3 -m oarsong.run -n 4 train.py: `oarsong run`, with this Python.

The options are those of `oarsong run`. The ranks find this package, too.
"""
import os
import sys

from ._lib import lib


def command():
    """Returns the path of the `oarsong` command that belongs to the library."""
    lib.load()
    folder = os.path.dirname(os.path.realpath(lib.path))
    for beside in ("../bin/oarsong", "../../bin/oarsong"):
        path = os.path.normpath(os.path.join(folder, beside))
        if os.access(path, os.X_OK):
            return path
    return "oarsong"


def main():
    """Becomes `oarsong run` with the arguments of this process."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if package not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [package] + [path for path in paths if path])
    os.environ["OARSONG_PYTHON"] = sys.executable
    program = command()
    try:
        os.execvp(program, [program, "run"] + sys.argv[1:])
    except OSError as error:
        sys.exit(f"oarsong.run: there is no command {program}: {error}. "
                 "`make install` brings it.")


if __name__ == "__main__":
    main()
