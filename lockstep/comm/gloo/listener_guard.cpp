// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/listener_guard.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "lockstep/base/log.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGuardPause = std::chrono::milliseconds(1);
constexpr rlim_t kMostDescriptors = 65536;
constexpr rlim_t kMostSpareDescriptors = 256;
constexpr int kDeferSeconds = 600;
constexpr int kLongestQueue = 65535;  // The kernel limits it to net.core.somaxconn.

constexpr uint32_t kPass = 0xffffffffU;
constexpr uint32_t kDrop = 0;
constexpr uint32_t kIpv4Source = 12;  // Offsets in the network header.
constexpr uint32_t kIpv6Source = 8;

using PacketFilter = std::vector<sock_filter>;

sock_filter load_network_word(uint32_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_NET_OFF) + offset);
}

/// Continues with the next instruction if the loaded word is `word`, else skips `skipped`.
sock_filter unless_word(uint32_t word, size_t skipped) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word, 0, static_cast<uint8_t>(skipped));
}

sock_filter verdict(uint32_t value) {
  return BPF_STMT(BPF_RET | BPF_K, value);
}

/// Returns the address as words in host order: one for IPv4, four for IPv6; none for another
/// family.
std::vector<uint32_t> words_of(const std::string& address, int family) {
  std::array<uint32_t, 4> raw{};
  if (::inet_pton(family, address.c_str(), raw.data()) != 1) {
    return {};
  }
  std::vector<uint32_t> words;
  for (size_t i = 0; i < (family == AF_INET ? 1U : 4U); ++i) {
    words.push_back(ntohl(raw[i]));
  }
  return words;
}

/// Returns a filter that passes packets of `hosts`; empty if none has an address of that family.
PacketFilter filter_by_source(const std::vector<std::string>& hosts, int family) {
  const uint32_t source = family == AF_INET ? kIpv4Source : kIpv6Source;
  PacketFilter filter;
  for (const std::string& host : hosts) {
    const std::vector<uint32_t> words = words_of(host, family);
    for (size_t i = 0; i < words.size(); ++i) {
      filter.push_back(load_network_word(source + static_cast<uint32_t>(i * sizeof(uint32_t))));
      filter.push_back(unless_word(words[i], 2 * (words.size() - i) - 1));
    }
    if (!words.empty()) {
      filter.push_back(verdict(kPass));
    }
  }
  if (!filter.empty()) {
    filter.push_back(verdict(kDrop));
  }
  return filter;
}

bool attach(int listener, PacketFilter filter) {
  if (filter.empty() || filter.size() > BPF_MAXINSNS) {
    return false;
  }
  const sock_fprog program{
      .len = static_cast<unsigned short>(filter.size()), .filter = filter.data()};
  return ::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
}

void detach(int socket) {
  const int ignored = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &ignored, sizeof(ignored));
}

struct SocketName {
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_storage);

  bool operator==(const SocketName& other) const {
    return length == other.length && std::memcmp(&address, &other.address, length) == 0;
  }
};

SocketName name_of_socket(int socket) {
  SocketName name;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&name.address), &name.length) != 0) {
    name.length = 0;
  }
  return name;
}

bool is_listening(int socket) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

rlim_t descriptor_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

std::vector<int> own_sockets() {
  std::vector<int> sockets;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end;
       entry.increment(error)) {
    const std::string text = entry->path().filename().string();
    int fd = -1;
    std::from_chars(text.data(), text.data() + text.size(), fd);
    const sa_family_t family = name_of_socket(fd).address.ss_family;
    if (family == AF_INET || family == AF_INET6) {
      sockets.push_back(fd);
    }
  }
  return sockets;
}

std::map<ino_t, int> listening_sockets() {
  std::map<ino_t, int> found;
  for (const int socket : own_sockets()) {
    struct stat info {};
    if (is_listening(socket) && ::fstat(socket, &info) == 0) {
      found[info.st_ino] = socket;
    }
  }
  return found;
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const rlim_t wanted = std::min(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

ListenerGuard::ListenerGuard(
    int listener,
    const std::optional<std::vector<std::string>>& hosts,
    std::chrono::milliseconds patience)
    : listener_(listener < 0 ? -1 : ::fcntl(listener, F_DUPFD_CLOEXEC, 0)),
      patience_(patience),
      admits_all_(!hosts) {
  if (!listener_.is_open()) {
    return;
  }
  const int family = name_of_socket(listener_.get()).address.ss_family;
  restricted_ = hosts && attach(listener_.get(), filter_by_source(*hosts, family));
  if (hosts && !restricted_) {
    log_debug("Gloo's port accepts all addresses until all ranks are connected");
  }
  ::setsockopt(
      listener_.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &kDeferSeconds, sizeof(kDeferSeconds));
  ::listen(listener_.get(), kLongestQueue);
  thread_ = std::thread([this] { watch(); });
}

ListenerGuard::~ListenerGuard() {
  stop();
}

void ListenerGuard::stop() {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ListenerGuard::watch() {
  const auto patience_ends = Clock::now() + patience_;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kGuardPause, [this] { return stopped_; })) {
    if (!fault_.empty()) {
      continue;
    }
    close_if_descriptors_are_scarce();
    if (fault_.empty() && restricted_ && Clock::now() >= patience_ends) {
      detach(listener_.get());
      restricted_ = false;
      admits_all_ = true;
      log_warning(
          fmt::format(
              "not all ranks have connected within {:g} s; connections from all addresses are now "
              "accepted, since the hosts may be behind NAT",
              std::chrono::duration<double>(patience_).count()),
          LogAudience::kEveryRank);
    }
  }
}

void ListenerGuard::close_if_descriptors_are_scarce() {
  const rlim_t limit = descriptor_limit();
  const rlim_t spare = std::min(limit / 8, kMostSpareDescriptors);
  // The lowest free descriptor shows how many are in use.
  const UniqueFd probe(::fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0));
  if (probe.is_open() && static_cast<rlim_t>(probe.get()) < limit - spare) {
    return;
  }
  attach(listener_.get(), {verdict(kDrop)});
  fault_ = fmt::format(
      "connections are no longer accepted, since more than {} of {} file descriptors are in use; "
      "raise 'ulimit -n', and look for programs that connect to the ports of this job",
      limit - spare,
      limit);
  log_warning(fault_, LogAudience::kEveryRank);
}

void ListenerGuard::close_to_all() {
  stop();
  if (!listener_.is_open()) {
    return;
  }
  if (!attach(listener_.get(), {verdict(kDrop)})) {
    log_debug("Gloo's port still accepts all addresses: the kernel has no packet filters");
  }
  const SocketName own = name_of_socket(listener_.get());
  for (const int socket : own_sockets()) {
    if (!is_listening(socket) && name_of_socket(socket) == own) {
      detach(socket);  // It inherited the filter, which costs time for every packet.
    }
  }
  listener_.reset();
}

bool ListenerGuard::admits_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return admits_all_;
}

std::string ListenerGuard::fault() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

}  // namespace lockstep::comm
