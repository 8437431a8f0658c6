// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/output/console.h"

namespace lockstep::launcher {

void Console::say(const std::string& text) {
  if (!quiet_) {
    report("lockstep: " + text + "\n");
  }
}

void Console::report(const std::string& lines) {
  err_.write(launcher_, "", lines);
}

int Console::flush() {
  out_.flush();
  err_.flush();
  return out_.error() != 0 ? out_.error() : err_.error();
}

void Console::await_room(std::vector<pollfd>& items) const {
  for (const Sink* sink : {&out_, &err_}) {
    if (!sink->empty()) {
      items.push_back({.fd = sink->fd(), .events = POLLOUT, .revents = 0});
    }
  }
}

int Console::flush_all(int interrupt) {
  for (Sink* sink : {&out_, &err_}) {
    for (sink->flush(); !sink->empty(); sink->flush()) {
      pollfd items[] = {
          {.fd = sink->fd(), .events = POLLOUT, .revents = 0},
          {.fd = interrupt, .events = POLLIN, .revents = 0}};
      ::poll(items, 2, -1);
      if (items[1].revents != 0) {
        break;
      }
    }
  }
  return flush();
}

}  // namespace lockstep::launcher
