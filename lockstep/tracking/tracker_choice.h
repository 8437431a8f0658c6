// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/tracking/tracker.h"

namespace lockstep::tracking {

/// Selects a tracker: one of Lockstep's by name, or an object of the program's own class. Converts
/// from either, so a list may mix them: {"jsonl", std::make_shared<MyTracker>()}.
class TrackerChoice {
 public:
  /// Takes a name for make_tracker().
  TrackerChoice(const char* name) : name_(name) {}             // NOLINT
  TrackerChoice(std::string name) : name_(std::move(name)) {}  // NOLINT
  /// Takes the program's own tracker.
  template <std::derived_from<Tracker> T>
  TrackerChoice(std::shared_ptr<T> tracker)  // NOLINT
      : is_own_(true), tracker_(std::move(tracker)) {}

  bool is_own() const { return is_own_; }
  const std::string& name() const { return name_; }
  /// Returns null if the choice is a name, or the program passed a null pointer.
  const std::shared_ptr<Tracker>& tracker() const { return tracker_; }

 private:
  bool is_own_ = false;
  std::string name_;
  std::shared_ptr<Tracker> tracker_;
};

}  // namespace lockstep::tracking
