// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/socket_owner.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

/// The words of each line of a table of the kernel's, without its head.
std::vector<std::vector<std::string>> rows_of(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string word; words >> word;) {
      rows.back().push_back(word);
    }
  }
  return rows;
}

/// As the links in /proc/PID/fd have it.
std::string link_to(const std::string& inode) {
  return "socket:[" + inode + "]";
}

std::optional<SocketOwner> holder_of(const std::set<std::string>& links) {
  std::error_code error;
  for (auto process = fs::directory_iterator("/proc", error); process != fs::directory_iterator();
       process.increment(error)) {
    const auto pid = parse_integer(process->path().filename());
    if (!pid || links.empty()) {
      continue;
    }
    std::error_code hidden;
    for (auto fd = fs::directory_iterator(process->path() / "fd", hidden);
         fd != fs::directory_iterator();
         fd.increment(hidden)) {
      if (links.count(fs::read_symlink(fd->path(), hidden)) != 0) {
        std::string name;
        std::getline(std::ifstream(process->path() / "comm"), name);
        return SocketOwner{static_cast<pid_t>(*pid), name};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<SocketOwner> owner_of_port(int port) {
  // sl, ADDRESS:PORT in hexadecimal, remote, state, queues, timers, retransmits, uid, timeout,
  // inode.
  constexpr size_t kLocal = 1;
  constexpr size_t kInode = 9;
  const std::string end = fmt::format(":{:04X}", port);
  std::set<std::string> links;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const auto& row : rows_of(table)) {
      if (row.size() > kInode && row[kLocal].ends_with(end) && row[kInode] != "0") {
        links.insert(link_to(row[kInode]));
      }
    }
  }
  return holder_of(links);
}

std::optional<SocketOwner> owner_of_name(const std::string& name) {
  // Number, references, protocol, flags, type, state, inode, path.
  constexpr size_t kInode = 6;
  constexpr size_t kPath = 7;
  std::set<std::string> links;
  for (const auto& row : rows_of("/proc/net/unix")) {
    if (row.size() > kPath && row[kPath] == "@" + name) {
      links.insert(link_to(row[kInode]));
    }
  }
  return holder_of(links);
}

}  // namespace lockstep::launcher
