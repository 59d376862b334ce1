"""The Dockerfile without an engine: its own steps in clean folders, and what they made on a read-only file system.

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
    """A line of the Dockerfile, with those that continue it."""

    name: str
    rest: str


def instructions(text: str) -> Iterator[Instruction]:
    """All of them, in order; comments are left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in filter(None, lines.replace("\\\n", " ").splitlines()):
        name, rest = line.split(None, 1)
        yield Instruction(name, rest)


class Stage:
    """A folder that RUN, COPY and their like act on, and what the image says of a process in it."""

    def __init__(self, root: Path, stages: dict[str, "Stage"]) -> None:
        self.root, self.env, self.folder, self.user = root, {"PATH": PATH}, "/", "0:0"
        self.command: dict[str, list[str]] = {}
        self._stages = stages
        _mount("--bind", str(root), str(root))  # so that it can be made read-only
        for name in ("usr", "etc", "bin", "sbin", "lib", "lib64"):
            at = Path("/", name)
            if at.is_symlink():
                (root / name).symlink_to(at.readlink())
            elif at.exists():
                (root / name).mkdir()
                _mount("--bind", "-o", "ro", str(at), str(root / name))
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

    def enter(self, command: list[str], user: str, **more: str) -> list[str]:
        """The command as a process of this stage has it; `more` are variables in addition to the image's own."""
        env = {**self.env, "LD_LIBRARY_PATH": "/usr/local/lib", "HOME": "/", **more}
        given = [f"{name}={value}" for name, value in env.items()]
        return ["chroot", f"--userspec={user}", "--groups=", str(self.root), "/usr/bin/env", "-i", *given, *command]

    def do(self, step: Instruction) -> None:
        """One instruction."""
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
                # How pip is set up here, where its index and certificates are, is no part of the image.
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
                raise SystemExit(f"{DOCKERFILE.name}: {step.name} is not known here")

    def _copy(self, *words: str) -> None:
        if words[0].startswith("--from="):
            source, into = words[1:]
            origin = self._stages[words[0].removeprefix("--from=")].root
            assert source == into
            packed = subprocess.Popen(["tar", "-C", origin, "--format=gnu", "-c", source[1:]], stdout=subprocess.PIPE)
            subprocess.run(["tar", "-C", self.root, "-x"], stdin=packed.stdout, check=True)
            assert packed.wait() == 0
            return
        *sources, last = words
        target = Path(self.root, self.folder.lstrip("/"), last)
        for name in sources:
            assert sent(name), f"{name} is not in .dockerignore's list"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.mkdir(exist_ok=True)
                shutil.copy2(ROOT / name, target)


def sent(name: str) -> bool:
    """Whether .dockerignore, a list of what is taken, lets this file or folder into the build."""
    return f"!{Path(name).parts[0]}" in (ROOT / ".dockerignore").read_text().splitlines()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def build(folder: Path) -> Stage:
    """Every stage; returns the last, with a root that can only be read."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for step in instructions(DOCKERFILE.read_text()):
        print(f"{step.name} {step.rest}", flush=True)
        if step.name == "FROM":
            image, _, name = step.rest.partition(" AS ")
            here = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
            print(f"  here: this system with Python {sys.version.split()[0]}" + (", another" if image != here else ""))
            (root := folder / (name or "image")).mkdir(mode=0o755)
            stage = stages[name or "image"] = Stage(root, stages)
        else:
            assert stage is not None
            stage.do(step)
    assert stage is not None
    for at in (stage.root, stage.root / "usr" / "local"):
        _mount("-o", "remount,ro,bind", str(at))
    return stage


def try_out(image: Stage, folder: Path) -> None:
    """Its kernels, its command, its health check: as its user, who can write to /tmp alone."""

    def inside(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(image.enter([*command], image.user, **more), capture_output=True, text=True, check=False)

    refused = inside("touch", "/opt/perceptron/new", "/usr/local/new", "/new")
    assert refused.stderr.count("Read-only file system") == 3, refused.stderr
    print("\nas", image.user, "with a read-only root:", flush=True)
    loaded = inside("python", "-I", "-c", KERNELS)
    print(loaded.stdout, end="")
    assert ", 0 compiled" in loaded.stdout, loaded.stderr

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
    """In a mount namespace of its own: what is mounted is gone before the folders are removed."""
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as name:
            unshare = ["unshare", "--mount", "--propagation", "private"]
            done = subprocess.run([*unshare, sys.executable, "-m", "tests.image", name], check=False)
        raise SystemExit(done.returncode)
    (folder := Path(sys.argv[1])).chmod(0o755)
    (data := folder / "data").mkdir()
    try_out(build(folder), data)


if __name__ == "__main__":
    main()
