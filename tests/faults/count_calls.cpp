// SPDX-License-Identifier: Apache-2.0
//
// Preloaded into the ranks of a job (LD_PRELOAD): counts the calls that change a file system, or
// look at it on the way there, below one folder, and lets one of them go wrong. While armed by
// fault_arm(1), in the rank LOCKSTEP_FAULT_RANK alone:
//
//   LOCKSTEP_FAULT_FOLDER   counted are calls whose path or descriptor lies below it (absolute)
//   LOCKSTEP_FAULT_KINDS    counted are these alone: "write,fsync"; all, if not set
//   LOCKSTEP_FAULT_CALL     the number, from 1, of the call that goes wrong; 0 none, -1 every one
//   LOCKSTEP_FAULT_ACTION   "kill" (SIGKILL, before the call), "short" (a write does half of it),
//                           "delay" (it takes LOCKSTEP_FAULT_DELAY_MS, else 0.4 s), "signal"
//                           (SIGTERM to the launcher, and a delay), or the number of an errno
//   LOCKSTEP_FAULT_LOG      gets a line for each counted call: "<number> <kind> <path>"
//
// The libraries this stands before must not notice: it allocates nothing, and calls the kernel or
// the next library in line.
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define COUNTED extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<bool> armed{false};
std::atomic<int> calls{0};

constexpr size_t kPathBytes = 4096;
using Path = std::array<char, kPathBytes>;

/// The result of a call.
struct Verdict {
  int error = 0;  ///< Fails with that, undone.
  bool halve = false;
};

const char* setting(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

bool is_listed(const char* kind) {
  const char* kinds = setting("LOCKSTEP_FAULT_KINDS");
  if (*kinds == '\0') {
    return true;
  }
  const size_t length = strlen(kind);
  for (const char* at = strstr(kinds, kind); at != nullptr; at = strstr(at + 1, kind)) {
    if ((at == kinds || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) {
      return true;
    }
  }
  return false;
}

void say(int number, const char* kind, const char* path) {
  const char* log = setting("LOCKSTEP_FAULT_LOG");
  if (*log == '\0') {
    return;
  }
  std::array<char, kPathBytes + 64> line;
  const int length = snprintf(line.data(), line.size(), "%d %s %s\n", number, kind, path);
  const long file =
      syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  syscall(SYS_write, file, line.data(), length);
  syscall(SYS_close, file);
}

Verdict judge(const char* kind, const char* path) {
  const char* folder = setting("LOCKSTEP_FAULT_FOLDER");
  if (*folder == '\0' || strncmp(path, folder, strlen(folder)) != 0 || !is_listed(kind) ||
      strcmp(setting("RANK"), setting("LOCKSTEP_FAULT_RANK")) != 0) {
    return {};
  }
  const int number = ++calls;
  say(number, kind, path);
  const long wanted = strtol(setting("LOCKSTEP_FAULT_CALL"), nullptr, 10);
  if (wanted != number && wanted != -1) {
    return {};
  }
  const char* action = setting("LOCKSTEP_FAULT_ACTION");
  if (strcmp(action, "kill") == 0) {
    kill(getpid(), SIGKILL);
  }
  if (strcmp(action, "short") == 0) {
    return {.halve = true};
  }
  const bool signals = strcmp(action, "signal") == 0;
  if (signals && number == 1) {
    kill(getppid(), SIGTERM);
  }
  if (signals || strcmp(action, "delay") == 0) {
    const long delay_ms = strtol(setting("LOCKSTEP_FAULT_DELAY_MS"), nullptr, 10);
    const long left_ms = delay_ms > 0 ? delay_ms : 400;
    timespec left = {.tv_sec = left_ms / 1000, .tv_nsec = left_ms % 1000 * 1'000'000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }  // A signal does not end an fsync either.
    return {};
  }
  return {.error = static_cast<int>(strtol(action, nullptr, 10))};
}

/// Of a descriptor; of a path that is relative to one, or to the working folder, as it was given.
Verdict judge_descriptor(const char* kind, int descriptor) {
  if (!armed) {
    return {};
  }
  const int before = errno;
  std::array<char, 64> link;
  snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  Path path;
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link.data(), path.data(), path.size() - 1);
  path[length < 0 ? 0 : static_cast<size_t>(length)] = '\0';
  const Verdict verdict = judge(kind, path.data());
  errno = before;
  return verdict;
}

Verdict judge_path(const char* kind, int folder, const char* path) {
  if (!armed || path == nullptr) {
    return {};
  }
  if (path[0] != '/' && folder != AT_FDCWD) {
    return judge_descriptor(kind, folder);
  }
  const int before = errno;
  const Verdict verdict = judge(kind, path);
  errno = before;
  return verdict;
}

int fail(int error) {
  errno = error;
  return -1;
}

/// Returns the original function of that name.
template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int open_counted(int folder, const char* path, int flags, mode_t mode) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  const Verdict verdict = judge_path(writes ? "create" : "open", folder, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

/// Restarts counting with 1 and stops it with 0. Programs find it by dlsym.
COUNTED void fault_arm(int on) {
  calls = 0;
  armed = on != 0;
}

COUNTED int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_counted(AT_FDCWD, path, flags, mode);
}

COUNTED int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_counted(AT_FDCWD, path, flags, mode);
}

COUNTED int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_counted(folder, path, flags, mode);
}

COUNTED int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_counted(folder, path, flags, mode);
}

COUNTED int creat(const char* path, mode_t mode) {
  return open_counted(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

COUNTED int creat64(const char* path, mode_t mode) {
  return open_counted(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

COUNTED ssize_t write(int file, const void* data, size_t size) {
  const Verdict verdict = judge_descriptor("write", file);
  return verdict.error != 0
             ? fail(verdict.error)
             : syscall(SYS_write, file, data, verdict.halve && size > 1 ? size / 2 : size);
}

COUNTED ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  const Verdict verdict = judge_descriptor("write", file);
  return verdict.error != 0
             ? fail(verdict.error)
             : syscall(
                   SYS_pwrite64, file, data, verdict.halve && size > 1 ? size / 2 : size, offset);
}

COUNTED ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  return pwrite(file, data, size, offset);
}

COUNTED ssize_t writev(int file, const iovec* pieces, int count) {
  const Verdict verdict = judge_descriptor("write", file);
  return verdict.error != 0
             ? fail(verdict.error)
             : syscall(SYS_writev, file, pieces, verdict.halve && count > 1 ? 1 : count);
}

COUNTED int fsync(int file) {
  const Verdict verdict = judge_descriptor("fsync", file);
  return verdict.error != 0 ? fail(verdict.error) : static_cast<int>(syscall(SYS_fsync, file));
}

COUNTED int fdatasync(int file) {
  const Verdict verdict = judge_descriptor("fsync", file);
  return verdict.error != 0 ? fail(verdict.error) : static_cast<int>(syscall(SYS_fdatasync, file));
}

COUNTED int sync_file_range(int file, off64_t offset, off64_t size, unsigned flags) {
  const Verdict verdict = judge_descriptor("fsync", file);
  return verdict.error != 0
             ? fail(verdict.error)
             : static_cast<int>(syscall(SYS_sync_file_range, file, offset, size, flags));
}

/// As on Linux, the descriptor is closed even if close() fails.
COUNTED int close(int file) {
  const Verdict verdict = judge_descriptor("close", file);
  const long result = syscall(SYS_close, file);
  return verdict.error != 0 ? fail(verdict.error) : static_cast<int>(result);
}

COUNTED int flock(int file, int operation) {
  const Verdict verdict = judge_descriptor("flock", file);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_flock, file, operation));
}

COUNTED int ftruncate(int file, off_t size) {
  const Verdict verdict = judge_descriptor("resize", file);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_ftruncate, file, size));
}

COUNTED int ftruncate64(int file, off64_t size) {
  return ftruncate(file, size);
}

COUNTED int fallocate(int file, int mode, off_t offset, off_t size) {
  const Verdict verdict = judge_descriptor("resize", file);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_fallocate, file, mode, offset, size));
}

COUNTED int fallocate64(int file, int mode, off64_t offset, off64_t size) {
  return fallocate(file, mode, offset, size);
}

/// Returns its error instead of setting errno.
COUNTED int posix_fallocate(int file, off_t offset, off_t size) {
  const Verdict verdict = judge_descriptor("resize", file);
  return verdict.error != 0
             ? verdict.error
             : next<int (*)(int, off_t, off_t)>("posix_fallocate")(file, offset, size);
}

COUNTED int mkdir(const char* path, mode_t mode) {
  const Verdict verdict = judge_path("mkdir", AT_FDCWD, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

COUNTED int mkdirat(int folder, const char* path, mode_t mode) {
  const Verdict verdict = judge_path("mkdir", folder, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_mkdirat, folder, path, mode));
}

COUNTED int chmod(const char* path, mode_t mode) {
  const Verdict verdict = judge_path("chmod", AT_FDCWD, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_fchmodat, AT_FDCWD, path, mode));
}

COUNTED int fchmod(int file, mode_t mode) {
  const Verdict verdict = judge_descriptor("chmod", file);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_fchmod, file, mode));
}

COUNTED int fchmodat(int folder, const char* path, mode_t mode, int flags) {
  const Verdict verdict = judge_path("chmod", folder, path);
  return verdict.error != 0
             ? fail(verdict.error)
             : next<int (*)(int, const char*, mode_t, int)>("fchmodat")(folder, path, mode, flags);
}

COUNTED int rename(const char* from, const char* to) {
  const Verdict verdict = judge_path("rename", AT_FDCWD, to);
  return verdict.error != 0
             ? fail(verdict.error)
             : static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

COUNTED int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  const Verdict verdict = judge_path("rename", to_folder, to);
  return verdict.error != 0
             ? fail(verdict.error)
             : static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
}

COUNTED int renameat2(
    int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const Verdict verdict = judge_path("rename", to_folder, to);
  return verdict.error != 0
             ? fail(verdict.error)
             : static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

COUNTED int unlink(const char* path) {
  const Verdict verdict = judge_path("remove", AT_FDCWD, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

COUNTED int unlinkat(int folder, const char* path, int flags) {
  const Verdict verdict = judge_path("remove", folder, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

COUNTED int rmdir(const char* path) {
  const Verdict verdict = judge_path("remove", AT_FDCWD, path);
  return verdict.error != 0 ? fail(verdict.error)
                            : static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}

COUNTED int remove(const char* path) {
  const Verdict verdict = judge_path("remove", AT_FDCWD, path);
  return verdict.error != 0 ? fail(verdict.error) : next<int (*)(const char*)>("remove")(path);
}
