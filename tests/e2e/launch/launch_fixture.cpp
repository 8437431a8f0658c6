// SPDX-License-Identifier: Apache-2.0
// A rank for the launcher's tests: its first argument says how it behaves.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <unistd.h>

namespace {

std::string rank() {
  const char* value = std::getenv("RANK");
  return value == nullptr ? "?" : value;
}

void hold(const std::string& word) {
  std::cout << word + " " + rank() + " " + std::to_string(::getpid()) + "\n" << std::flush;
  for (;;) {
    ::pause();
  }
}

/// Long lines, each all of one letter between its number and its end.
void lines(int count, int width) {
  const std::string letters(static_cast<size_t>(width), static_cast<char>('a' + std::stoi(rank())));
  for (int i = 0; i < count; ++i) {
    std::cout << rank() << ' ' << i << ' ' << letters << " end\n";
  }
  std::cout << std::flush;
}

int exit_with(int code) {
  for (int i = 1; i <= 25; ++i) {
    std::cerr << "stderr line " << i << "\n";
  }
  return code;
}

/// Waits for a signal, says which it was and ends as one that has saved.
int save() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    sigaddset(&wanted, signal);
  }
  ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
  std::cout << "ready " + rank() + "\n" << std::flush;
  int signal = 0;
  ::sigwait(&wanted, &signal);
  std::cout << "got " + std::to_string(signal) + "\n" << std::flush;
  return 75;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "environment") {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      std::cout << rank() << ": " << *entry << "\n";
    }
  } else if (mode == "arguments") {
    for (int i = 2; i < argc; ++i) {
      std::cout << "<" << argv[i] << ">";
    }
    std::cout << "\n";
  } else if (mode == "lines") {
    lines(std::stoi(argv[2]), std::stoi(argv[3]));
  } else if (mode == "lines-and-hold") {
    lines(std::stoi(argv[2]), std::stoi(argv[3]));
    hold("ready");
  } else if (mode == "hold") {
    hold("ready");
  } else if (mode == "stubborn") {
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
    hold("ready");
  } else if (mode == "crash") {
    ::signal(SIGSEGV, SIG_DFL);  // A sanitizer would make an exit code of it.
    ::raise(SIGSEGV);
  } else if (mode == "save") {
    return save();
  } else if (mode == "rank-1-exits") {
    if (rank() == "1") {
      return exit_with(std::stoi(argv[2]));
    }
    hold("ready");
  } else if (mode == "copy") {
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << rank() << " read " << line << "\n";
    }
    std::cout << rank() << " is done\n";
  } else {
    return 99;
  }
  return 0;
}
