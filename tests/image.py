"""The Dockerfile without an engine: its steps run in clean folders, and the result on a read-only file system.

Each stage is a folder that is entered by chroot. Two things differ from an image: the base is this machine's system,
which can only be read, with the Python that runs this in /usr/local; and no layer is packed, but a stage's files are
copied as a layer has them, with times in whole seconds. Needs root, Linux and the network.
"""

import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from service.embedded import servers
from tests.conftest import wait

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PATH = "/usr/local/bin:/usr/bin:/bin"
KERNELS = """
import gc, time
from numba.core.registry import CPUDispatcher
from service.process.service import warm_up
began = time.perf_counter()
warm_up()
seconds = time.perf_counter() - began
kernels = [k for k in gc.get_objects() if isinstance(k, CPUDispatcher)]
stats = [k.stats for k in kernels if k.py_func.__module__.startswith("service.")]
hits, misses = (sum(sum(getattr(s, name).values()) for s in stats) for name in ("cache_hits", "cache_misses"))
print(f"kernels: {hits} loaded, {misses} compiled, {seconds:.2f} s")
"""


class Instruction(NamedTuple):
    """A line of the Dockerfile, with its continuation lines."""

    name: str
    rest: str


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile, in order, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in filter(None, lines.replace("\\\n", " ").splitlines()):
        name, rest = line.split(None, 1)
        yield Instruction(name, rest)


class Stage:
    """A folder on which RUN, COPY and the like act, and the image's settings for a process in it."""

    def __init__(self, root: Path, stages: dict[str, "Stage"]) -> None:
        self.root, self.env, self.folder, self.user = root, {"PATH": PATH}, "/", "0:0"
        self.command: dict[str, list[str]] = {}
        self._stages = stages
        _mount("--bind", str(root), str(root))  # so that it can be made read-only
        for name in ("usr", "etc", "bin", "sbin", "lib", "lib64"):
            path = Path("/", name)
            if path.is_symlink():
                (root / name).symlink_to(path.readlink())
            elif path.exists():
                (root / name).mkdir()
                _mount("--bind", "-o", "ro", str(path), str(root / name))
        for name in ("opt", "src", "wheels", "proc", "dev", "tmp"):
            (root / name).mkdir()
        for name, minor in (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9)):
            os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            (root / "dev" / name).chmod(0o666)
        _mount("-t", "proc", "proc", str(root / "proc"))
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / "tmp"))
        base = root.with_name(f"{root.name}-python")
        shutil.copytree(sys.base_prefix, base, symlinks=True, ignore=shutil.ignore_patterns("test", "__pycache__"))
        (base / "bin" / "pip").write_text(
            "#!/usr/local/bin/python3\nfrom pip._internal.cli.main import main\nraise SystemExit(main())\n"
        )
        if not (base / "bin" / "python").exists():
            (base / "bin" / "python").symlink_to("python3")
        _mount("--bind", str(base), str(root / "usr" / "local"))

    def enter(self, command: list[str], user: str, **variables: str) -> list[str]:
        """The command line that runs a command in this stage; `variables` are added to the image's own."""
        env = {**self.env, "LD_LIBRARY_PATH": "/usr/local/lib", "HOME": "/", **variables}
        values = [f"{name}={value}" for name, value in env.items()]
        return ["chroot", f"--userspec={user}", "--groups=", str(self.root), "/usr/bin/env", "-i", *values, *command]

    def execute(self, step: Instruction) -> None:
        """Execute one instruction."""
        match step:
            case Instruction("ENV", rest):
                for pair in shlex.split(rest):
                    name, value = pair.split("=", 1)
                    self.env[name] = value.replace("$PATH", self.env["PATH"])
            case Instruction("WORKDIR", rest):
                self.folder = rest
                (self.root / self.folder.lstrip("/")).mkdir(exist_ok=True, parents=True)
            case Instruction("USER", rest):
                self.user = rest
            case Instruction("RUN", rest):
                # The settings of pip on this machine, its index and certificates, are not a part of the image.
                own = {n: v for n, v in os.environ.items() if n.startswith(("PIP_", "SSL_")) and n not in self.env}
                shell = ["/bin/sh", "-ec", f"cd {self.folder} && {rest}"]
                subprocess.run(self.enter(shell, self.user, **own), check=True)
            case Instruction("COPY", rest):
                self._copy(*rest.split())
            case Instruction("HEALTHCHECK", rest):
                self.command["HEALTHCHECK"] = json.loads(rest.partition("CMD")[2])
            case Instruction("ENTRYPOINT" | "CMD" as name, rest):
                self.command[name] = json.loads(rest)
            case Instruction(name, _) if name != "EXPOSE":
                raise SystemExit(f"{DOCKERFILE.name}: {step.name} is not supported here")

    def _copy(self, *arguments: str) -> None:
        if arguments[0].startswith("--from="):
            source, target_path = arguments[1:]
            origin = self._stages[arguments[0].removeprefix("--from=")].root
            assert source == target_path
            packed = subprocess.Popen(["tar", "-C", origin, "--format=gnu", "-c", source[1:]], stdout=subprocess.PIPE)
            subprocess.run(["tar", "-C", self.root, "-x"], stdin=packed.stdout, check=True)
            assert packed.wait() == 0
            return
        *sources, destination = arguments
        target = Path(self.root, self.folder.lstrip("/"), destination)
        for name in sources:
            assert in_build_context(name), f"{name} is not in .dockerignore's list"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.mkdir(exist_ok=True)
                shutil.copy2(ROOT / name, target)


def in_build_context(name: str) -> bool:
    """Whether .dockerignore, a list of exceptions, lets this file or folder into the build."""
    return f"!{Path(name).parts[0]}" in (ROOT / ".dockerignore").read_text().splitlines()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def build(folder: Path) -> Stage:
    """Build every stage; returns the last one, with a read-only root."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for step in instructions(DOCKERFILE.read_text()):
        print(f"{step.name} {step.rest}", flush=True)
        if step.name == "FROM":
            image, _, name = step.rest.partition(" AS ")
            base = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
            print(f"  here: this system with Python {sys.version.split()[0]}" + (", another" if image != base else ""))
            (root := folder / (name or "image")).mkdir(mode=0o755)
            stage = stages[name or "image"] = Stage(root, stages)
        else:
            assert stage is not None
            stage.execute(step)
    assert stage is not None
    for path in (stage.root, stage.root / "usr" / "local"):
        _mount("-o", "remount,ro,bind", str(path))
    return stage


def check_image(image: Stage, folder: Path) -> None:
    """Check the image's kernels, command and health check as its user, who can write only to /tmp."""

    def inside(*command: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(image.enter([*command], image.user, **env), capture_output=True, text=True, check=False)

    writes = inside("touch", "/opt/perceptron/new", "/usr/local/new", "/new")
    assert writes.stderr.count("Read-only file system") == 3, writes.stderr
    print("\nas", image.user, "with a read-only root:", flush=True)
    kernels = inside("python", "-I", "-c", KERNELS)
    print(kernels.stdout, end="")
    assert ", 0 compiled" in kernels.stdout, kernels.stderr

    with servers.start_kafka(folder) as kafka, servers.start_redis(folder) as redis:
        port = str(servers.free_port())
        settings = {
            "PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS": kafka.address,
            "PERCEPTRON_REDIS__URL": f"redis://{redis.address}/0",
            "PERCEPTRON_HTTP__PORT": port,
            "PERCEPTRON_TOPICS": "churn",
            "PERCEPTRON_CREATE_TOPICS": "true",
        }
        began = time.monotonic()
        command = [*image.command["ENTRYPOINT"], *image.command["CMD"]]
        process = subprocess.Popen(image.enter(command, image.user, **settings))
        try:
            wait(lambda: inside(*image.command["HEALTHCHECK"], **settings).returncode == 0, "healthy")
            print(f"{' '.join(command)}: healthy after {time.monotonic() - began:.1f} s")
            line = """echo '{"features": {"age": 2}, "label": 1}' | perceptron produce - -t churn"""
            produced = inside("sh", "-c", line, **settings)
            assert produced.returncode == 0, produced.stderr
            model = f"http://127.0.0.1:{port}/v1/models/churn"
            wait(lambda: httpx.get(model).json().get("events") == 1, "the event is learned")
            print("produced, learned:", httpx.get(f"{model}/weights").text)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(30)
        print("SIGTERM: exit", code)
        assert code == 0


def main() -> None:
    """Run in a separate mount namespace, so that all mounts are gone before the folders are removed."""
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as name:
            unshare = ["unshare", "--mount", "--propagation", "private"]
            result = subprocess.run([*unshare, sys.executable, "-m", "tests.image", name], check=False)
        raise SystemExit(result.returncode)
    (folder := Path(sys.argv[1])).chmod(0o755)
    (data := folder / "data").mkdir()
    check_image(build(folder), data)


if __name__ == "__main__":
    main()
