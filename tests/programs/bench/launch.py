"""A command's seconds of the processor and the most memory that it held, in MiB: `python launch.py
PROGRAM ARGUMENT...`, the program by its whole path.

What a parent is told of a process's memory begins with what the parent itself held, so this parent
holds no more than an empty interpreter.
"""

import os
import sys

quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, used = os.wait4(
    os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet), 0
)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status))
