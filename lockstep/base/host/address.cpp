// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/host/address.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep {

bool Address::is_loopback() const {
  if (family() == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(in->sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
  }
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool Address::is_own() const {
  Address any_port = *this;
  // sin_port and sin6_port have the same offset.
  reinterpret_cast<sockaddr_in*>(&any_port.storage)->sin_port = 0;
  const UniqueFd fd(::socket(family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.is_open() && ::bind(fd.get(), any_port.get(), length) == 0;
}

int Address::port() const {
  // sin_port and sin6_port have the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

std::string Address::host() const {
  char text[NI_MAXHOST];
  if (::getnameinfo(get(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  // An IPv6 socket reports an IPv4 peer with this prefix.
  const std::string host = text;
  constexpr const char* kMapped = "::ffff:";
  return host.starts_with(kMapped) ? host.substr(std::strlen(kMapped)) : host;
}

std::vector<Address> resolve(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed != 0) {
    why = failed == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failed);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  std::vector<Address> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address& address = found.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  return found;
}

Address any_address(int port, bool ipv6) {
  Address address;
  if (ipv6) {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_addr = in6addr_any;
    in6->sin6_port = htons(static_cast<uint16_t>(port));
    address.length = sizeof(*in6);
  } else {
    auto* in = reinterpret_cast<sockaddr_in*>(&address.storage);
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_ANY);
    in->sin_port = htons(static_cast<uint16_t>(port));
    address.length = sizeof(*in);
  }
  return address;
}

Address loopback(int port) {
  Address address = any_address(port, false);
  reinterpret_cast<sockaddr_in*>(&address.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool is_numeric(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_written_as_loopback(const std::string& host) {
  std::string why;
  return host == "localhost" || (is_numeric(host) && resolve(host, 0, why).front().is_loopback());
}

Address own_address(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

Address peer_address(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

}  // namespace lockstep
