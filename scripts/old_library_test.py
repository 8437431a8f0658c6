# SPDX-License-Identifier: Apache-2.0
"""Tests old_library with a small C library that has symbols of two releases. Run by ctest; by hand: python3 scripts/old_library_test.py"""
import ctypes
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

OLD_LIBRARY = Path(__file__).resolve().parent / "old_library"

LIBRARY = """
int of_release_1(void) { return 1; }
int of_release_2(void) { return 2; }
int answer_1(void) { return 10; }
int answer_2(void) { return 20; }
int number = 5;
__asm__(".symver of_release_1, only_in_1@@T_1.0");
__asm__(".symver of_release_2, only_in_2@@T_1.10");
__asm__(".symver answer_1, answer@T_1.0");
__asm__(".symver answer_2, answer@@T_1.10");
"""
VERSIONS = "T_1.0 { global: only_in_1; answer; number; local: *; }; T_1.10 { global: only_in_2; answer; } T_1.0;"


class OldLibrary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.write("library.c", LIBRARY)
        self.write("versions", VERSIONS)
        self.gcc("-Wl,--version-script=versions", "-Wl,-soname,libt.so.1", "-o", "libt.so.1", "library.c")
        (self.folder / "old").mkdir()
        # 1.9 is older than 1.10.
        subprocess.run([sys.executable, OLD_LIBRARY, "libt.so.1", "old/libt.so.1", "T_1.9"], cwd=self.folder, check=True)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def gcc(self, *arguments):
        return subprocess.run(["gcc", "-shared", "-fPIC", *arguments], cwd=self.folder, capture_output=True, text=True, check=True)

    def linked(self, code):
        """Returns a library of the code that is linked with the old library, and runs with the real one."""
        self.write("user.c", code)
        self.gcc("-Wl,-z,defs", "-o", "user.so", "user.c", "old/libt.so.1", "-lc")
        ctypes.CDLL(str(self.folder / "libt.so.1"))
        return ctypes.CDLL(str(self.folder / "user.so"))

    def test_a_symbol_gets_the_version_of_the_old_release(self):
        user = self.linked("int answer(void); int use(void) { return answer(); }")
        self.assertEqual(user.use(), 10)
        needed = subprocess.run(["readelf", "-V", self.folder / "user.so"], capture_output=True, text=True, check=True).stdout
        self.assertIn("T_1.0", needed)
        self.assertNotIn("T_1.10", needed)

    def test_functions_and_variables_of_the_old_release_run(self):
        user = self.linked("extern int number; int only_in_1(void); int use(void) { return number + only_in_1(); }")
        self.assertEqual(user.use(), 6)

    def test_the_linker_refuses_symbols_of_newer_releases(self):
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            self.linked("int only_in_2(void); int use(void) { return only_in_2(); }")
        self.assertIn("only_in_2", refused.exception.stderr)


if __name__ == "__main__":
    unittest.main()
