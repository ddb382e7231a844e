# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a peer: in a Debian sid root, or by a python that has it; and runs of
programs that end in time. For bench/compare-fsdp, bench/compare-tp and
bench/compare-pipeline."""
import os
import shutil
import signal
import subprocess
import sys

GUARD_S = 240  # no run takes longer


def say(text):
    print(text, file=sys.stderr, flush=True)


def add_arguments(parse):
    parse.add_argument("--build", default="build/release")
    parse.add_argument("--sid", help="root of a Debian sid")
    parse.add_argument("--python", default="python3", help="where there is no --sid")
    parse.add_argument("--rounds", type=int, default=3)
    parse.add_argument("--steps", type=int, help="of every run")
    parse.add_argument("--limit-s", type=float, default=540)


def in_sid(root, command, argv):
    """A command line that has bash run a function of tests/support/sid-root."""
    script = ('folder=$1; shift; skip() { echo "$*" >&2; exit 77; }; '
              f'. tests/support/sid-root; {command} "$@"')
    return ["bash", "-euc", script, "bash", root, *argv]


def find(args, program, needs):
    """How to run a program of this folder: the start of a command line; None if the
    statement that it needs cannot be run."""
    threads = ["env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"]
    if args.sid:
        packages = ["python3-torch", "libopenblas0-pthread", "python3-numpy"]
        made = subprocess.run(in_sid(args.sid, "make_root; install_inside", packages),
                              stdout=sys.stderr, check=False)
        if made.returncode != 0:
            return None
        shutil.copy("bench/" + program, args.sid + "/tmp")
        found = in_sid(args.sid, "inside", [*threads, "python3", "-W", "ignore", "/tmp/" + program])
        test = in_sid(args.sid, "inside", ["python3", "-c", needs])
    else:
        found = [*threads, args.python, "-W", "ignore", "bench/" + program]
        test = [args.python, "-c", needs]
    if subprocess.run(test, capture_output=True, check=False).returncode == 0:
        return found
    say(f"there is no torch that can do \"{needs}\": --sid ROOT, or --python")
    return None


def run(argv):
    """What a program printed, and what it complained of; it and its children end in time."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}) as program:
        try:
            out, err = program.communicate(timeout=GUARD_S)
        except BaseException as why:
            os.killpg(program.pid, signal.SIGKILL)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            return "", f"it took longer than {GUARD_S} s"
    return out if program.returncode == 0 else "", err


def show(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"
