"""Switches of the whole process are turned under its lock, or where nothing else runs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("attacks", "clients", "experiments", "fedsim", "server")
CALLS = {
    *("set_num_threads", "set_num_interop_threads", "set_default_dtype", "set_default_device"),
    *("use_deterministic_algorithms", "set_float32_matmul_precision", "set_flush_denormal"),
    *("fork_rng", "set_rng_state", "sdpa_kernel", "no_init_weights", "setrecursionlimit"),
    *("catch_warnings", "simplefilter", "filterwarnings", "resetwarnings"),
    *("chdir", "umask", "putenv", "set_verbosity_error", "disable_progress_bar"),
    *("disable_progress_bars", "setLevel", "basicConfig", "signal.signal", "set_wakeup_fd"),
    *("torch.manual_seed", "default_generator.manual_seed", "cuda.manual_seed"),
    *("np.random.seed", "np.random.set_state", "random.seed", "random.setstate"),
    *("os.environ.update", "os.environ.setdefault", "os.environ.clear", "os.environ.pop"),
}
"""Functions by the end of their dotted name."""
_ENDS = tuple(f".{name}" for name in CALLS)
FLAGS = {"enabled", "benchmark", "deterministic", "allow_tf32", "ENABLE_RAY_CLUSTER"}
"""Attributes of torch's backends and of Ray's modules."""
ELSEWHERE = {
    "attacks/scheduling/cluster.py": "the command's thread, outside the time of its jobs",
    "attacks/scheduling/isolation.py": "a process that runs one job, before it does",
    "experiments/cli.py": "the command's thread, as it starts and as it ends",
    "experiments/extras/watch/watch.py": "the page's own process, as it starts",
    "fedsim/__init__.py": "at the import, and only where it is not set",
    "fedsim/data/tables.py": "off for good, whichever thread comes first",
    "fedsim/config/named_code.py": "the command's thread, before anything is loaded",
    "fedsim/process.py": "what ``unchanged`` calls, under the lock; at the import",
    "server/grids/local.py": "the same level for good, whichever thread comes first",
}
"""Files whose switches need no lock, and why."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """The files in which a switch or the lock is named, which are few."""
    flags = [f".{name}" for name in FLAGS]
    search = re.compile("|".join(map(re.escape, [*CALLS, *flags, "os.environ", "@exclusive"])))
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if search.search(text := path.read_text("utf-8")):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def exclusive(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "exclusive" in map(
            ast.unparse, node.decorator_list
        ):
            yield node.name


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of such an expression; of another only the attributes behind it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def turns(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return f".{dotted(node.func)}".endswith(_ENDS)
    targets = node.targets if isinstance(node, ast.Assign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    return any(
        (isinstance(part, ast.Attribute) and part.attr in FLAGS)
        or (isinstance(part, ast.Subscript) and ast.unparse(part.value) == "os.environ")
        for part in parts
    )


def unlocked(node: ast.AST, locks: set[str]) -> Iterator[ast.AST]:
    """What turns a switch below ``node``, outside the functions and blocks that have the lock."""
    if isinstance(node, ast.FunctionDef) and node.name in set(exclusive(node)):
        return
    if isinstance(node, ast.With):
        held = (ast.unparse(item.context_expr).partition("(")[0] for item in node.items)
        if locks.intersection(held):
            return
    if turns(node):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from unlocked(child, locks)


def test_a_switch_is_turned_under_the_lock_or_where_nothing_else_runs() -> None:
    files = dict(sources())
    locks = {"PROCESS", *(name for tree in files.values() for name in exclusive(tree))}
    turned = {path: [*unlocked(tree, locks)] for path, tree in files.items()}
    assert {"seeded", "unchanged", "one_thread", "float32", "quiet"} < locks
    known = {path for path in ELSEWHERE if (ROOT / path).exists()}  # extras may be deleted
    assert {path for path, nodes in turned.items() if nodes} == known, [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path, nodes in turned.items()
        for node in nodes
        if path not in ELSEWHERE
    ]


def test_the_scan_sees_a_switch_without_the_lock() -> None:
    free = ast.parse("def f():\n    torch.set_num_threads(1)\n    torch.backends.cudnn.enabled = 0")
    kept = ast.parse(
        "@exclusive\ndef f():\n    torch.set_num_threads(1)\n"
        "def g():\n    with PROCESS, warnings.catch_warnings():\n        pass"
    )
    assert len([*unlocked(free, {"PROCESS"})]) == 2
    assert not [*unlocked(kept, {"PROCESS"})]
