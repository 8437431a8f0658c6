// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hierarchy/ranks_by_host.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/words.h"

namespace lockstep::comm {
namespace {

/// Returns the inode of this process's namespace; 0 if there is none.
uint64_t namespace_of(const char* kind) {
  struct stat info {};
  return ::stat(fmt::format("/proc/self/ns/{}", kind).c_str(), &info) == 0
             ? static_cast<uint64_t>(info.st_ino)
             : 0;
}

uint64_t this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  const std::string boot{std::istreambuf_iterator<char>(file), {}};
  utsname names{};
  ::uname(&names);
  // Clones of a virtual machine may have one boot id, but hardly one name.
  const std::string text = fmt::format(
      "{}/{}/{}/{}",
      boot,
      static_cast<const char*>(names.nodename),
      namespace_of("net"),
      namespace_of("pid"));
  uint64_t hash = 1469598103934665603ULL;  // FNV-1a: std::hash need not be the same everywhere.
  for (const unsigned char c : text) {
    hash = (hash ^ c) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace

RankLocation RankLocation::of(const WorldSpec& world) {
  std::random_device device;
  return {
      .machine = this_machine(),
      .token = (uint64_t{device()} << 32U) | device(),
      .local_rank = world.local_rank,
      .local_size = world.local_size};
}

RanksByHost::RanksByHost(std::vector<std::vector<int>> hosts) : hosts_(std::move(hosts)) {
  std::sort(hosts_.begin(), hosts_.end());
  size_t ranks = 0;
  for (const auto& members : hosts_) {
    ranks += members.size();
    largest_ = std::max(largest_, static_cast<int>(members.size()));
    equal_ = equal_ && members.size() == hosts_.front().size();
  }
  host_of_.resize(ranks);
  index_of_.resize(ranks);
  for (size_t host = 0; host < hosts_.size(); ++host) {
    for (size_t index = 0; index < hosts_[host].size(); ++index) {
      const auto rank = static_cast<size_t>(hosts_[host][index]);
      host_of_[rank] = static_cast<int>(host);
      index_of_[rank] = static_cast<int>(index);
    }
  }
}

RanksByHost RanksByHost::of(const std::vector<RankLocation>& by_rank) {
  // Two launchers on one machine give their ranks equal values. Since a host has each local rank
  // once, the second rank with a local rank belongs to the second launcher.
  std::map<std::tuple<uint64_t, int64_t, int64_t>, int> seen;
  std::map<std::tuple<uint64_t, int64_t, int>, std::vector<int>> hosts;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto& [machine, token, local_rank, local_size] = by_rank[rank];
    const int nth = seen[{machine, local_size, local_rank}]++;
    hosts[{machine, local_size, nth}].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> members;
  for (auto& [key, ranks] : hosts) {
    const int64_t expected = std::get<1>(key);
    if (static_cast<int64_t>(ranks.size()) != expected) {
      throw Error(
          "hosts",
          fmt::format(
              "{} cannot share memory with other ranks of the host; got {} ranks, expected {}; run "
              "all ranks of a host in one container, or with the same namespaces",
              ranks_text(ranks),
              ranks.size(),
              expected));
    }
    members.push_back(std::move(ranks));
  }
  return RanksByHost(std::move(members));
}

}  // namespace lockstep::comm
