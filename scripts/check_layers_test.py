# SPDX-License-Identifier: Apache-2.0
"""Tests check_layers with small made-up repositories. Run by ctest; by hand: python3 scripts/check_layers_test.py"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parent / "check_layers"


def run(files):
    """Returns the exit code and the lines of check_layers for a repository of `files` (path -> text)."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()


class CheckLayers(unittest.TestCase):
    def refused(self, path, text, *parts):
        code, lines = run({path: text})
        self.assertEqual((code, len(lines)), (1, 1), lines)
        for part in parts:
            self.assertIn(part, lines[0])

    def accepted(self, path, text):
        self.assertEqual(run({path: text}), (0, []))

    def test_names_file_line_and_the_missing_arrow(self):
        self.refused(
            "lockstep/flat/bucket.cpp",
            '// one\n#include <vector>\n#include "lockstep/sync/data_parallel.h"\n',
            "lockstep/flat/bucket.cpp:3: ",
            "there is no arrow flat -> sync",
        )

    def test_follows_the_arrows_down(self):
        for layer, target in [("flat", "comm"), ("sync", "flat"), ("accelerator", "tracking"), ("data", "base")]:
            self.accepted(f"lockstep/{layer}/x.h", f'#include "lockstep/{target}/y.h"\n')
            self.refused(f"lockstep/{target}/y.h", f'#include "lockstep/{layer}/x.h"\n', f"{target} -> {layer}")

    def test_base_may_include_only_itself(self):
        self.accepted("lockstep/base/x.h", '#include "lockstep/base/y.h"\n#include <string>\n')
        self.refused("lockstep/base/x.h", '#include "lockstep/comm/group.h"\n', "base -> comm")

    def test_nothing_but_the_command_line_reaches_launch(self):
        self.accepted("cli/main.cpp", '#include "lockstep/launcher/job/job.h"\n')
        self.refused("lockstep/accelerator/x.cpp", '#include "lockstep/launcher/job/job.h"\n', "accelerator -> launcher")

    def test_follows_the_arrows_between_subfolders(self):
        self.accepted("lockstep/launcher/job/x.h", '#include "lockstep/launcher/process/y.h"\n')
        self.refused(
            "lockstep/launcher/process/x.h",
            '#include "lockstep/launcher/job/y.h"\n',
            "there is no arrow launcher/process -> launcher/job",
        )
        self.accepted("lockstep/launcher/process/x_test.cpp", '#include "lockstep/launcher/job/y.h"\n')
        self.accepted("cli/main.cpp", '#include "cli/launch/y.h"\n')
        self.refused("cli/common/x.h", '#include "cli/launch/y.h"\n', "there is no arrow cli/common -> cli/launch")

    def test_refuses_a_subfolder_without_a_place(self):
        self.refused("lockstep/zero/new/x.h", '#include "lockstep/zero/y.h"\n', "zero/new has no place")

    def test_refuses_torch_where_there_must_be_none(self):
        for path in ["lockstep/base/a.h", "lockstep/launcher/a.cpp", "lockstep/tracking/a_test.cpp", "cli/a.cpp"]:
            for header in ["torch/torch.h", "ATen/core/Tensor.h", "c10/util/Exception.h"]:
                self.refused(path, f"  #  include <{header}>\n", header, "without torch")
        self.accepted("lockstep/flat/a.h", "#include <ATen/core/Tensor.h>\n")

    def test_refuses_c10d_outside_the_transports(self):
        self.refused("lockstep/sync/a.cpp", "void f(c10d::Store& store);\n", "a.cpp:1:", "c10d")
        self.refused("lockstep/comm/group.cpp", "using c10d :: Store;\n", "c10d")
        self.refused("lockstep/comm/group.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", "outside")
        self.accepted("lockstep/comm/gloo/a.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\nc10d::Store* s;\n")

    def test_prose_may_name_c10d(self):
        self.accepted("lockstep/comm/group.h", "/// As c10d::Backend does.\n/* c10d::\n c10d:: */\n")
        self.accepted("lockstep/comm/group.cpp", 'auto s = "c10d::Store", r = R"(c10d::)";\nint n = 1\'000;\n')
        self.refused("lockstep/comm/group.cpp", "/* a\n */ c10d::Store* s;\n", "group.cpp:2:")

    def test_refuses_a_folder_without_a_place(self):
        self.refused("lockstep/utils/a.h", "#pragma once\n", "lockstep/utils", "architecture.md")
        self.refused("lockstep/a.h", "#pragma once\n", "has no place")

    def test_refuses_paths_that_do_not_start_at_the_root(self):
        self.refused("lockstep/base/a.cpp", '#include "error.h"\n', "repository's root")

    def test_the_umbrella_is_for_users(self):
        self.accepted("examples/a/main.cpp", "#include <lockstep/lockstep.h>\n")
        self.accepted("lockstep/lockstep.h", '#include "lockstep/accelerator/accelerator.h"\n')
        for target in ["lockstep/lockstep.h", "lockstep/fwd.h"]:
            self.refused("lockstep/sync/a.cpp", f'#include "{target}"\n', f"{target} is for users of the library")

    def test_refuses_slow_headers_below_the_umbrella(self):
        for slow in ["nlohmann/json.hpp", "fmt/format.h", "torch/torch.h", "future"]:
            code, lines = run({
                "lockstep/lockstep.h": '#include "lockstep/flat/x.h"\n',
                "lockstep/flat/x.h": '#include <string>\n#include "lockstep/flat/y.h"\n',
                "lockstep/flat/y.h": f"#pragma once\n#include <{slow}>\n",
            })
            self.assertEqual((code, len(lines)), (1, 1), lines)
            self.assertIn(f"lockstep/flat/y.h:2: <{slow}> takes long to compile", lines[0])

    def test_permits_slow_headers_elsewhere(self):
        slow = "#include <nlohmann/json.hpp>\n"
        code, lines = run({
            "lockstep/lockstep.h": '#include "lockstep/base/x.h"\n',
            "lockstep/base/x.h": "#include <nlohmann/json_fwd.hpp>\n",
            "lockstep/base/x.cpp": '#include "lockstep/base/x.h"\n' + slow,
            "lockstep/base/internal.h": slow,
        })
        self.assertEqual((code, lines), (0, []))

    def test_library_code_does_not_reach_up(self):
        for top in ["cli", "examples", "tests"]:
            self.refused("lockstep/base/a.cpp", f'#include "{top}/a.h"\n', "no arrow")
        self.accepted("lockstep/base/a_test.cpp", '#include "tests/ranks.h"\n')

    def test_an_empty_repository_is_no_success(self):
        self.assertEqual(run({}), (2, []))


if __name__ == "__main__":
    unittest.main()
