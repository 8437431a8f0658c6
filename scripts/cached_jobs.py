# SPDX-License-Identifier: Apache-2.0
"""Runs one command for each file, several at a time, and skips files whose last run passed.

A job's key is a hash of its command, of the configuration, and of the text of its file and of every file of
this repository that it includes, directly or indirectly. Keys of passed jobs are stored as empty files.

All files passed at the commit in scripts/checked_commit. Since then only files that changed, or that include a
changed file themselves, are run: a change of a header that half of the sources include would take an hour else.
scripts/checked_options has a hash of the compile options at that commit.
"""
import hashlib
import json
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ROOT / "scripts/checked_commit"
CHECKED_OPTIONS = ROOT / "scripts/checked_options"
# A change of these can reach every file.
REACHES_ALL = re.compile(r"\.clang-tidy|scripts/(tidy|check_headers|cached_jobs\.py)")
PINNED = r"^readonly (tidy|torch)_version="
# Lines of a CMakeLists.txt that may change how its sources are compiled; others list sources.
COMPILE_RULES = r"\b(target_|add_|set_source|set_target|LIBRARIES|if\b|foreach\b|include\b)"
PYTHON_HEADERS = re.compile(r"/include/python3\.\d+$")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]((?:lockstep|cli|examples|tests|bench|python)/[^">]+)[">]', re.MULTILINE)


@dataclass
class Job:
    path: str  # The checked file, from the repository's root.
    command: list  # Its exit code is the result; its output is shown after a failure.
    folder: str  # The working directory.
    salt: object = None  # Other input of the key, for JSON.


def read_compile_commands(build):
    """Returns the compile commands of this repository's sources: {path: {"arguments": [...], "directory": ...}}."""
    try:
        entries = json.loads(Path(build, "compile_commands.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        sys.exit(f"{build}/compile_commands.json does not exist; run ./dev build first")
    ours = {}
    for entry in entries:
        file = Path(entry["directory"], entry["file"]).resolve()
        if ROOT in file.parents and ROOT / "build" not in file.parents and file.is_file():
            arguments = entry.get("arguments") or shlex.split(entry["command"])
            ours[file.relative_to(ROOT).as_posix()] = {"arguments": arguments, "directory": entry["directory"]}
    return ours


# Options with a value that names one file.
OF_ONE_FILE = {"-o", "-c", "-MT", "-MF", "-MQ"}


def options_of(entry):
    """Returns a compile command without ccache and the names of its file: the compiler and its options."""
    arguments = iter(entry["arguments"])
    kept = []
    for argument in arguments:
        if argument in OF_ONE_FILE:
            next(arguments)
        elif not argument.endswith("/ccache"):
            kept.append(argument)
    return kept


def is_test(path):
    return path.endswith("_test.cpp") or path.startswith("tests/")


def hash_of_options(commands):
    """Returns a hash of the sets of options. Which file has which set is not part of it: see folders in reached_by().
    Those of tests do not count: the path of one more fixture would have all files checked."""
    different = set()
    for entry in (entry for path, entry in commands.items() if not is_test(path)):
        compiler, *options = options_of(entry)
        # The compiler's folder, that of Python and that of the repository do not count.
        kept = (option.replace(str(ROOT), "") for option in options if not PYTHON_HEADERS.search(option))
        different.add(json.dumps([Path(compiler).name, *kept]))
    return hashlib.sha256("\n".join(sorted(different)).encode()).hexdigest()


def included_by(path):
    """Returns the files of this repository that `path` includes itself."""
    return INCLUDE.findall((ROOT / path).read_text(encoding="utf-8"))


def with_includes(path, seen=None):
    """Returns `path` and every file of this repository that it includes, directly or indirectly."""
    seen = set() if seen is None else seen
    if path not in seen and (ROOT / path).is_file():
        seen.add(path)
        for target in included_by(path):
            with_includes(target, seen)
    return seen


def key_of(job, config):
    digest = hashlib.sha256(json.dumps([job.command, job.folder, job.salt, config]).encode())
    for path in sorted(with_includes(job.path)):
        digest.update(path.encode() + b"\0" + (ROOT / path).read_bytes() + b"\0")
    return digest.hexdigest()


def git(*words):
    """Returns git's output, or None if it fails: without a repository, or without the commit's history."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def changed_since_checked(commands):
    """Returns the paths that differ from those of the commit in scripts/checked_commit. None: any file may differ."""
    commit = CHECKED.read_text(encoding="utf-8").strip()
    tracked = git("diff", "--name-only", "--no-renames", commit)
    untracked = git("ls-files", "--others", "--exclude-standard")
    rules = git("diff", "--name-only", "-G", COMPILE_RULES, commit, "--", "*CMakeLists.txt")
    versions = git("diff", "--name-only", "-G", PINNED, commit, "--", "scripts/bootstrap", "scripts/lib.sh")
    if tracked is None or untracked is None or versions is None or rules is None:
        print(f"git has no commit {commit} of scripts/checked_commit; all files are checked", flush=True)
        return None
    changed = {path for path in (tracked + untracked).splitlines() if not path.endswith("CMakeLists.txt") or path in rules.splitlines()}
    everywhere = sorted(path for path in changed if REACHES_ALL.fullmatch(path)) + versions.split()
    options = hash_of_options(commands)
    if not CHECKED_OPTIONS.exists() or options != CHECKED_OPTIONS.read_text(encoding="utf-8").strip():
        print(f"scripts/checked_options has another hash than the compile options, {options}; all files are checked", flush=True)
        return None
    if everywhere:
        print(f"{everywhere[0]} differs from commit {commit[:12]} of scripts/checked_commit; all files are checked", flush=True)
        return None
    return changed


def reached_by(changed, job):
    """Returns whether the job's file, a file that it includes itself, or its folder's CMakeLists.txt is in `changed`.

    A CMakeLists.txt is there if the way changed in which it compiles sources."""
    folders = {path.removesuffix("CMakeLists.txt") for path in changed if path.endswith("/CMakeLists.txt")}
    return not changed.isdisjoint([job.path, *included_by(job.path)]) or any(map(job.path.startswith, folders))


def run_one(job):
    began = time.monotonic()
    done = subprocess.run(
        job.command, cwd=job.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - began


def run_all(name, jobs, workers, cache, config, changed=None):
    """Runs the jobs that reached_by() finds for the files `changed` (None: all) and whose keys are not in the folder `cache`.
    Returns whether all files pass."""
    cache.mkdir(parents=True, exist_ok=True)
    if changed is not None:
        reached = [job for job in jobs if reached_by(changed, job)]
        print(f"{name}: {len(jobs) - len(reached)} files are as they were in scripts/checked_commit", flush=True)
        jobs = reached
    keys = {job.path: key_of(job, config) for job in jobs}
    todo = [job for job in jobs if not (cache / keys[job.path]).exists()]
    if len(todo) < len(jobs):
        print(f"{name}: {len(jobs) - len(todo)} files are unchanged since they passed", flush=True)
    failed = []
    with ThreadPoolExecutor(max_workers=workers) as pool:
        running = {pool.submit(run_one, job): job for job in todo}
        for number, future in enumerate(as_completed(running), 1):
            job = running[future]
            code, output, seconds = future.result()
            verdict = "" if code == 0 else "  FAILED"
            print(f"[{number}/{len(todo)}] {seconds:5.1f} s  {job.path}{verdict}", flush=True)
            if code == 0:
                (cache / keys[job.path]).touch()
            else:
                print(output.strip(), flush=True)
                failed.append(job.path)
    for path in keys.keys() & set(failed):
        print(f"{name}: {path} failed", file=sys.stderr)
    print(f"{name}: {len(jobs)} files, {len(failed) or 'none'} failed", file=sys.stderr)
    return not failed
