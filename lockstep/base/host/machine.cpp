// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/machine.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <fstream>
#include <functional>
#include <ifaddrs.h>
#include <iterator>
#include <map>
#include <net/if.h>
#include <netinet/in.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "lockstep/base/env.h"
#include "lockstep/base/host/cores.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Reads until the end, since files of /proc and /sys have size 0.
std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpaces = " \t\r\n\"";
  const size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// Returns the text after "key<separator>" in the first line that begins so; empty if there is
/// none.
std::string field(const std::string& text, const std::string& key, char separator) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(separator);
    if (at != std::string::npos && trimmed(line.substr(0, at)) == key) {
      return trimmed(line.substr(at + 1));
    }
  }
  return "";
}

/// Returns the number at the start of `text`.
uint64_t leading_number(const std::string& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  return static_cast<uint64_t>(parse_integer(text.substr(0, end)).value_or(0));
}

std::vector<fs::path> children(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    paths.push_back(entry->path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Machine::System describe_system(const fs::path& root) {
  Machine::System system;
  system.name = field(text_of(root / "etc/os-release"), "PRETTY_NAME", '=');
  utsname names{};
  if (::uname(&names) == 0) {
    system.kernel = std::string(names.sysname) + " " + names.release;
    system.architecture = names.machine;
    system.host = names.nodename;
  }
  return system;
}

// --- control groups, whose limits may be lower than those of the machine

/// Returns the folders with the limits of this process: its own first, then its parents.
std::vector<fs::path> cgroup_folders(const fs::path& mount, const fs::path& own) {
  std::vector<fs::path> folders;
  for (fs::path path = own.relative_path(); !path.empty(); path = path.parent_path()) {
    folders.push_back(mount / path);
  }
  folders.push_back(mount);  // In a container /proc may show the path outside of it.
  return folders;
}

/// Returns the least limit that `read` finds in the folders of a controller, of version 2 or 1.
template <typename Number>
std::optional<Number> least_limit(
    const fs::path& root,
    const std::string& controller,
    const std::function<std::optional<Number>(const fs::path&)>& read) {
  std::optional<Number> least;
  std::istringstream lines(text_of(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool ours = controllers.empty() ||
                      ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    const fs::path mount = root / "sys/fs/cgroup" / controllers;
    for (const fs::path& folder : cgroup_folders(mount, line.substr(second + 1))) {
      const std::optional<Number> limit = ours ? read(folder) : std::nullopt;
      if (limit && (!least || *limit < *least)) {
        least = limit;
      }
    }
  }
  return least;
}

std::optional<double> cores_limit(const fs::path& folder) {
  std::istringstream second(text_of(folder / "cpu.max"));
  double quota = 0;
  double period = 0;
  if (!(second >> quota >> period)) {
    std::istringstream first(
        text_of(folder / "cpu.cfs_quota_us") + " " + text_of(folder / "cpu.cfs_period_us"));
    if (!(first >> quota >> period)) {
      return std::nullopt;
    }
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

std::optional<uint64_t> memory_limit(const fs::path& folder) {
  constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // Version 1 reports almost 2^63 for no limit.
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    const uint64_t bytes = leading_number(text_of(folder / name));
    if (bytes > 0 && bytes < kNoLimit) {
      return bytes;
    }
  }
  return std::nullopt;
}

Machine::Cpu describe_cpu(const fs::path& root) {
  Machine::Cpu cpu;
  const std::string info = text_of(root / "proc/cpuinfo");
  for (const char* key : {"model name", "Model", "Hardware", "cpu model"}) {
    cpu.model = cpu.model.empty() ? field(info, key, ':') : cpu.model;
  }
  cpu.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu.allowed = available_cores();
  for (const fs::path& path : children(root / "sys/devices/system/node")) {
    const std::string name = path.filename();
    cpu.numa_nodes += name.starts_with("node") && parse_integer(name.substr(4)) ? 1 : 0;
  }
  cpu.cgroup_cores = least_limit<double>(root, "cpu", cores_limit);
  return cpu;
}

std::optional<Machine::SharedMemory> describe_shared_memory(const fs::path& root) {
  struct statvfs status {};
  if (::statvfs((root / "dev/shm").c_str(), &status) != 0) {
    return std::nullopt;
  }
  return Machine::SharedMemory{
      .bytes = status.f_blocks * status.f_frsize, .free_bytes = status.f_bavail * status.f_frsize};
}

std::vector<Machine::Limit> describe_limits() {
  const auto number = [](rlim_t limit) {
    return limit == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(limit);
  };
  std::vector<Machine::Limit> limits;
  const auto add = [&](const char* name, auto resource) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0) {
      limits.push_back({name, number(limit.rlim_cur), number(limit.rlim_max)});
    }
  };
  add("nofile", RLIMIT_NOFILE);
  add("memlock", RLIMIT_MEMLOCK);
  add("nproc", RLIMIT_NPROC);
  return limits;
}

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, address, sizeof(four));
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, address, sizeof(six));
    ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
  }
  return text;
}

}  // namespace

Machine::Memory describe_memory(const fs::path& root) {
  constexpr uint64_t kKibibyte = 1024;
  const std::string info = text_of(root / "proc/meminfo");
  return {
      .bytes = leading_number(field(info, "MemTotal", ':')) * kKibibyte,
      .available_bytes = leading_number(field(info, "MemAvailable", ':')) * kKibibyte,
      .cgroup_bytes = least_limit<uint64_t>(root, "memory", memory_limit)};
}

std::vector<Machine::Interface> describe_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return {};
  }
  std::map<std::string, Machine::Interface> by_name;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    Machine::Interface& interface = by_name[entry->ifa_name];
    interface.name = entry->ifa_name;
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (entry->ifa_addr != nullptr) {
      std::string text = address_text(entry->ifa_addr);
      if (!text.empty()) {
        interface.addresses.push_back(std::move(text));
      }
    }
  }
  ::freeifaddrs(first);
  std::vector<Machine::Interface> interfaces;
  for (auto& [name, interface] : by_name) {
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

std::set<std::string> interface_addresses() {
  std::set<std::string> all;
  for (const Machine::Interface& interface : describe_interfaces()) {
    if (interface.up && !interface.loopback) {
      all.insert(interface.addresses.begin(), interface.addresses.end());
    }
  }
  return all;
}

Machine describe_machine(const fs::path& root) {
  Machine machine;
  machine.system = describe_system(root);
  machine.cpu = describe_cpu(root);
  machine.memory = describe_memory(root);
  machine.shared_memory = describe_shared_memory(root);
  machine.limits = describe_limits();
  machine.interfaces = describe_interfaces();
  for (const fs::path& gpu : children(root / "proc/driver/nvidia/gpus")) {
    machine.gpus.push_back(field(text_of(gpu / "information"), "Model", ':'));
  }
  machine.gpu_driver = field(text_of(root / "proc/driver/nvidia/version"), "NVRM version", ':');
  return machine;
}

}  // namespace lockstep
