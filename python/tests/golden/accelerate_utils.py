# SPDX-License-Identifier: Apache-2.0
"""Writes accelerate_utils.txt: the names that `accelerate.utils` imports, from its source: accelerate_utils.py FOLDER."""
import ast
import sys
from pathlib import Path

tree = ast.parse((Path(sys.argv[1]) / "accelerate/utils/__init__.py").read_text(encoding="utf-8"))
imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
names = sorted({alias.asname or alias.name for alias in imports})
Path(__file__).with_suffix(".txt").write_text("\n".join(names) + "\n", encoding="utf-8")
