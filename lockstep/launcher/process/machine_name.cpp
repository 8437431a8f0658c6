// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/machine_name.h"

#include <arpa/inet.h>
#include <array>
#include <ifaddrs.h>
#include <memory>
#include <netinet/in.h>
#include <unistd.h>

#include "lockstep/base/text/words.h"

namespace lockstep::launcher {
namespace {

bool is_interface_address(const std::string& name) {
  in_addr wanted4{};
  in6_addr wanted6{};
  const bool is4 = ::inet_pton(AF_INET, name.c_str(), &wanted4) == 1;
  const bool is6 = ::inet_pton(AF_INET6, name.c_str(), &wanted6) == 1;
  ifaddrs* list = nullptr;
  if (!(is4 || is6) || ::getifaddrs(&list) != 0) {
    return false;
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    if (is4 && entry->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      if (address->sin_addr.s_addr == wanted4.s_addr) {
        return true;
      }
    }
    if (is6 && entry->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (IN6_ARE_ADDR_EQUAL(&address->sin6_addr, &wanted6)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

bool is_this_host(const std::string& name) {
  const std::string bare = lower(name.substr(name.rfind('@') + 1));
  const std::string own = lower(host_name());
  return bare == "localhost" || bare == "ip6-localhost" || bare == own ||
         bare == own.substr(0, own.find('.')) ||
         // A full name, on a machine whose own name is the short one.
         (own.find('.') == std::string::npos && bare.starts_with(own + ".")) ||
         is_interface_address(bare);
}

}  // namespace lockstep::launcher
