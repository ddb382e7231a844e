# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of this package for pip (PEP 517), with Python alone: `pip
install ./python` needs neither setuptools nor a network."""
import base64
import hashlib
import os
import re
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def _project(key):
    """Returns a text of [project] in pyproject.toml."""
    with open(os.path.join(HERE, "pyproject.toml")) as file:
        return re.search(rf'^{key} = "(.*)"$', file.read(), re.M)[1]


def _files():
    """Yields the files of the package: Python, and the backend in C++."""
    folder = os.path.join(HERE, "oarsong")
    for name in sorted(os.listdir(folder)):
        if name.endswith((".py", ".cc", ".h")):
            with open(os.path.join(folder, name), "rb") as file:
                yield "oarsong/" + name, file.read()


def _about(folder):
    """Yields what describes the wheel."""
    yield f"{folder}/METADATA", "\n".join((
        "Metadata-Version: 2.1", f"Name: {_project('name')}",
        f"Version: {_project('version')}",
        f"Summary: {_project('description')}", "License: Apache-2.0",
        f"Requires-Python: {_project('requires-python')}", "")).encode()
    yield f"{folder}/WHEEL", (b"Wheel-Version: 1.0\nGenerator: oarsong\n"
                              b"Root-Is-Purelib: true\nTag: py3-none-any\n")


def build_wheel(wheel_directory, config_settings=None,
                metadata_directory=None):
    """Writes the wheel, and returns its name."""
    name = f"oarsong-{_project('version')}"
    wheel, about = name + "-py3-none-any.whl", name + ".dist-info"
    record = []
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w",
                         zipfile.ZIP_DEFLATED) as out:
        for path, data in [*_files(), *_about(about)]:
            out.writestr(path, data)
            digest = base64.urlsafe_b64encode(
                hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}\n")
        record.append(f"{about}/RECORD,,\n")
        out.writestr(f"{about}/RECORD", "".join(record))
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the source is the repository: install ./python")
