// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/tracker_options.h"

namespace lockstep::tracking {

/// Selects a tracker: one of Lockstep's by name or by its options, or an object of the program's
/// own class. Converts from any of them, so a list may mix them:
/// {"jsonl", MlflowOptions{.run_name = "a"}, std::make_shared<MyTracker>()}.
class TrackerChoice {
 public:
  using Options = std::variant<std::monostate, ExecOptions, MlflowOptions, WandbOptions>;

  /// Takes a name for make_tracker(), "all", or "exec:COMMAND".
  TrackerChoice(const char* name) : TrackerChoice(std::string(name)) {}  // NOLINT
  TrackerChoice(std::string name) : name_(std::move(name)) {             // NOLINT
    if (name_.starts_with("exec:")) {
      options_ = ExecOptions{.command = name_.substr(5)};
      name_ = "exec";
    }
  }
  TrackerChoice(ExecOptions options) : name_("exec"), options_(std::move(options)) {}      // NOLINT
  TrackerChoice(MlflowOptions options) : name_("mlflow"), options_(std::move(options)) {}  // NOLINT
  TrackerChoice(WandbOptions options) : name_("wandb"), options_(std::move(options)) {}    // NOLINT
  /// Takes the program's own tracker.
  template <std::derived_from<Tracker> T>
  TrackerChoice(std::shared_ptr<T> tracker)  // NOLINT
      : is_own_(true), tracker_(std::move(tracker)) {}

  bool is_own() const { return is_own_; }
  const std::string& name() const { return name_; }
  /// Returns null if the choice is not an object, or the program passed a null pointer.
  const std::shared_ptr<Tracker>& tracker() const { return tracker_; }
  /// Returns the options, or their defaults if the choice has none of this type.
  template <class T>
  T options_or_defaults() const {
    const T* found = std::get_if<T>(&options_);
    return found != nullptr ? *found : T{};
  }

 private:
  bool is_own_ = false;
  std::string name_;
  Options options_;
  std::shared_ptr<Tracker> tracker_;
};

}  // namespace lockstep::tracking
