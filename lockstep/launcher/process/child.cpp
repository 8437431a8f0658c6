// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/child.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <elf.h>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::launcher {
namespace {

constexpr int kCannotExecute = 127;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(
        "lockstep launch",
        fmt::format("cannot create the pipe for a rank's output: {}", system_error_text(errno)));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Returns the mask of `cores` for sched_setaffinity; empty if there are none.
std::vector<unsigned char> mask_of(const std::vector<int>& cores) {
  if (cores.empty()) {
    return {};
  }
  const int last = *std::max_element(cores.begin(), cores.end());
  std::vector<unsigned char> mask(CPU_ALLOC_SIZE(last + 1));
  for (const int core : cores) {
    CPU_SET_S(static_cast<size_t>(core), mask.size(), reinterpret_cast<cpu_set_t*>(mask.data()));
  }
  return mask;
}

/// The data of the child between fork and exec. It is prepared before, since the child must not
/// allocate.
struct Plan {
  const char* path;
  char* const* argv;
  char* const* shell_argv;  // Null: the file is not a script.
  char* const* environment;
  int stdin_fd, out_fd, err_fd, report_fd, registration_fd;
  pid_t parent;
  const cpu_set_t* cores;  // Null: the launcher's.
  size_t cores_bytes;
};

void default_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 ||
        (signal == SIGHUP && action.sa_handler == SIG_IGN)) {
      continue;
    }
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void report_and_exit(const Plan& plan, int error) {
  [[maybe_unused]] const ssize_t written = ::write(plan.report_fd, &error, sizeof(error));
  ::_exit(kCannotExecute);
}

[[noreturn]] void exec_program(const Plan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) {
    ::_exit(kCannotExecute);  // The parent died before prctl() took effect.
  }
  const pid_t self = ::getpid();
  if (plan.registration_fd >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(plan.registration_fd, &self, sizeof(self));
  }
  default_signals();
  if (plan.cores != nullptr && ::sched_setaffinity(0, plan.cores_bytes, plan.cores) != 0) {
    report_and_exit(plan, errno);
  }
  if (::dup2(plan.stdin_fd, STDIN_FILENO) >= 0 && ::dup2(plan.out_fd, STDOUT_FILENO) >= 0 &&
      ::dup2(plan.err_fd, STDERR_FILENO) >= 0) {
    ::execve(plan.path, plan.argv, plan.environment);
    if (errno == ENOEXEC && plan.shell_argv != nullptr) {
      ::execve("/bin/sh", plan.shell_argv, plan.environment);
    }
  }
  report_and_exit(plan, errno);
}

/// Returns whether /bin/sh may run a file that the kernel cannot execute. POSIX's rule: the first
/// line has no null byte.
bool is_shell_script(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 256> begin{};
  file.read(begin.data(), begin.size());
  const std::string_view text(begin.data(), static_cast<size_t>(file.gcount()));
  return text.substr(0, text.find('\n')).find('\0') == std::string_view::npos;
}

/// Returns 0 once the program runs, else the errno of its exec.
int await_exec(const UniqueFd& report) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(report.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  return size == sizeof(error) ? error : 0;
}

bool is_user_error(int error) {
  constexpr std::array kUserErrors = {ENOENT, EACCES, ENOEXEC, ELOOP, ENOTDIR, E2BIG, ETXTBSY};
  for (const int candidate : kUserErrors) {
    if (candidate == error) {
      return true;
    }
  }
  return false;
}

/// Returns the architecture of an ELF file; empty for another file.
std::string elf_machine(const std::string& path) {
  Elf64_Ehdr header{};  // The fields up to e_machine are the same in files of 32 bits.
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  if (std::string_view(reinterpret_cast<const char*>(header.e_ident), SELFMAG) != ELFMAG) {
    return "";
  }
  switch (header.e_machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return "ppc64";
    case EM_RISCV:
      return "riscv";
    case EM_386:
      return "i386";
    case EM_ARM:
      return "arm";
    default:
      return fmt::format("another architecture (ELF machine {})", header.e_machine);
  }
}

/// Returns a hint for an error of exec; `is_script`: the file is text.
std::string exec_hint(const std::string& path, int error, bool is_script) {
  if (error == ENOENT) {
    return "; the interpreter in its first line may be missing";
  }
  if (error != ENOEXEC || is_script) {
    return "";
  }
  utsname host{};
  ::uname(&host);
  const std::string machine = elf_machine(path);
  return machine.empty()
             ? "; the file is neither a program nor a script"
             : fmt::format(
                   "; the file is a program for {}, and this host is {}; build it for {}",
                   machine,
                   host.machine,
                   host.machine);
}

[[noreturn]] void refuse(
    const std::string& name, const std::string& path, int error, bool is_script = true) {
  const std::string what =
      fmt::format("{} could not be started; {}: {}", name, path, system_error_text(error));
  if (is_user_error(error)) {
    throw ConfigError("lockstep launch", what + exec_hint(path, error, is_script));
  }
  throw Error("lockstep launch", what);
}

}  // namespace

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words) {
    pointers.push_back(const_cast<char*>(word.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

void open_standard_streams() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) {
    ::close(fd);
  }
}

Child start_child(const ChildSpec& spec, const std::string& name) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe report = make_pipe();
  const bool is_script = is_shell_script(spec.program->path);
  std::vector<std::string> shell_words = {"sh", spec.program->path};
  shell_words.insert(shell_words.end(), spec.program->argv.begin() + 1, spec.program->argv.end());
  const std::vector<char*> argv = pointers_to(spec.program->argv);
  const std::vector<char*> shell_argv = pointers_to(shell_words);
  const std::vector<char*> environment = pointers_to(spec.environment);
  const std::vector<unsigned char> cores = mask_of(spec.cores);
  const Plan plan = {
      .path = spec.program->path.c_str(),
      .argv = argv.data(),
      .shell_argv = is_script ? shell_argv.data() : nullptr,
      .environment = environment.data(),
      .stdin_fd = spec.stdin_fd,
      .out_fd = out.write.get(),
      .err_fd = err.write.get(),
      .report_fd = report.write.get(),
      .registration_fd = spec.registration_fd,
      .parent = ::getpid(),
      .cores = cores.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(cores.data()),
      .cores_bytes = cores.size()};
  const pid_t pid = ::fork();
  if (pid == 0) {
    exec_program(plan);
  }
  if (pid < 0) {
    refuse(name, "fork", errno);
  }
  report.write.reset();
  if (const int error = await_exec(report.read); error != 0) {
    ::waitpid(pid, nullptr, 0);
    refuse(name, spec.program->path, error, is_script);
  }
  // glibc 2.36 declares pidfd_open for C alone.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.is_open()) {
    const int error = errno;
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    refuse(name, "pidfd_open", error);
  }
  for (const UniqueFd* end : {&out.read, &err.read}) {
    ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  return {pid, std::move(pidfd), std::move(out.read), std::move(err.read)};
}

}  // namespace lockstep::launcher
