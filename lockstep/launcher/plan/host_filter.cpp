// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/host_filter.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text/split.h"
#include "lockstep/base/text/suggest.h"

namespace lockstep::launcher {
namespace {

/// The slots that a filter names, for each host.
class Filter {
 public:
  Filter(const std::vector<Host>& hosts, std::string flag, const std::string& text)
      : hosts_(hosts),
        flag_(std::move(flag)),
        text_(text),
        named_(hosts.size()),
        all_of_(hosts.size()) {
    for (size_t at = 0; at < text_.size();) {
      at = read_node(at);
    }
    if (text_.ends_with('@')) {
      refuse("ends with '@'; expected a host after it");
    }
  }

  bool names(size_t host, int slot) const {
    return named_[host].empty() ? all_of_[host] : named_[host].contains(slot);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError("lockstep launch", fmt::format("{} '{}' {}", flag_, text_, what));
  }

  /// Returns the host whose name begins at `at`. Names may contain ':' and '@' (IPv6, user@host),
  /// so the longest match counts.
  size_t host_at(size_t at) const {
    size_t best = hosts_.size();
    std::vector<std::string> known;
    for (size_t i = 0; i < hosts_.size(); ++i) {
      const std::string& name = hosts_[i].name;
      known.push_back(name);
      const size_t end = at + name.size();
      const bool fits = text_.compare(at, name.size(), name) == 0 &&
                        (end == text_.size() || text_[end] == ':' || text_[end] == '@');
      if (fits && (best == hosts_.size() || name.size() > hosts_[best].name.size())) {
        best = i;
      }
    }
    if (best == hosts_.size()) {
      const std::string name = text_.substr(at, text_.find_first_of(":@", at) - at);
      refuse(
          name.empty() ? "has an empty host name; expected NAME[:SLOT[,SLOT]][@NAME...]"
                       : fmt::format(
                             "names host '{}', which the hostfile does not have{}",
                             name,
                             did_you_mean(name, known)));
    }
    return best;
  }

  /// Reads one NODE; returns the position of the next one.
  size_t read_node(size_t at) {
    const size_t host = host_at(at);
    at += hosts_[host].name.size();
    if (at == text_.size() || text_[at] == '@') {
      all_of_[host] = true;
      return at + 1;
    }
    const size_t end = std::min(text_.find('@', at), text_.size());
    for (const std::string& slot : split(text_.substr(at + 1, end - at - 1), ',')) {
      named_[host].insert(slot_of(hosts_[host], slot));
    }
    return end + 1;
  }

  int slot_of(const Host& host, const std::string& text) const {
    const auto slot = parse_integer(text);
    if (!slot || *slot < 0 || *slot >= host.slots) {
      refuse(fmt::format(
          "names slot '{}' of {}, which has {} slots; expected numbers from 0 to {}",
          text,
          host.name,
          host.slots,
          host.slots - 1));
    }
    return static_cast<int>(*slot);
  }

  const std::vector<Host>& hosts_;
  std::string flag_;
  const std::string& text_;
  std::vector<std::set<int>> named_;
  std::vector<bool> all_of_;  ///< Named without slots. Ignored for a host with named slots.
};

void check_agreement(const std::string& include, const std::string& exclude, int most_hosts) {
  if (!include.empty() && !exclude.empty()) {
    throw ConfigError("lockstep launch", "--include and --exclude are both given; give only one");
  }
  if (most_hosts > 0 && !(include.empty() && exclude.empty())) {
    throw ConfigError(
        "lockstep launch", "--num-nodes contradicts --include and --exclude; give only one");
  }
}

}  // namespace

std::vector<HostSlots> filter_hosts(
    const std::vector<Host>& hosts,
    const std::string& include,
    const std::string& exclude,
    int most_hosts) {
  check_agreement(include, exclude, most_hosts);
  if (most_hosts > static_cast<int>(hosts.size())) {
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "--num-nodes {} is more than the {} hosts of the hostfile", most_hosts, hosts.size()));
  }
  const Filter kept(hosts, "--include", include);
  const Filter dropped(hosts, "--exclude", exclude);
  const size_t end = most_hosts > 0 ? static_cast<size_t>(most_hosts) : hosts.size();
  std::vector<HostSlots> result;
  for (size_t i = 0; i < end; ++i) {
    HostSlots host{.name = hosts[i].name};
    for (int slot = 0; slot < hosts[i].slots; ++slot) {
      if ((include.empty() || kept.names(i, slot)) && !dropped.names(i, slot)) {
        host.slots.push_back(slot);
      }
    }
    host.all = static_cast<int>(host.slots.size()) == hosts[i].slots;
    if (!host.slots.empty()) {
      result.push_back(std::move(host));
    }
  }
  if (result.empty()) {
    throw ConfigError(
        "lockstep launch", fmt::format("--exclude '{}' leaves no host; exclude fewer", exclude));
  }
  return result;
}

}  // namespace lockstep::launcher
