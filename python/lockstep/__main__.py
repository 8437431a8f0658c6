# SPDX-License-Identifier: Apache-2.0
"""`python -m lockstep ARGS...` executes the native program `lockstep ARGS...`."""

from .commands import main

if __name__ == "__main__":
    main()
