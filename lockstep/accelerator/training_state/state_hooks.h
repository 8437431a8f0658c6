// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <utility>

#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/reader.h"

namespace lockstep {

/// The state that save_state is about to write. A hook may add files to it or exclude models.
struct StateBeingSaved {
  /// This process's files; each name belongs to one process.
  checkpoint::Contents& contents;
  size_t models = 0;                   ///< Number of prepared models.
  std::set<size_t> excluded_models{};  ///< Models that the hook saves itself.
};

/// The state that load_state is about to read.
struct StateBeingLoaded {
  const checkpoint::Reader& checkpoint;
  size_t models = 0;
  std::set<size_t> excluded_models{};  ///< Models that the hook has loaded itself.
};

using SaveStatePreHook = std::function<void(StateBeingSaved&)>;
using LoadStatePreHook = std::function<void(StateBeingLoaded&)>;

/// A list of hooks in order of registration.
template <typename Hook>
class HookList {
 public:
  std::function<void()> add(Hook hook) {
    const auto place = hooks_->insert(hooks_->end(), std::move(hook));
    return [hooks = std::weak_ptr(hooks_), place, removed = false]() mutable {
      if (const auto list = hooks.lock(); list && !removed) {
        list->erase(place);
        removed = true;
      }
    };
  }
  template <typename Argument>
  void run(Argument& argument) const {
    for (const Hook& hook : *hooks_) {
      hook(argument);
    }
  }

 private:
  std::shared_ptr<std::list<Hook>> hooks_ = std::make_shared<std::list<Hook>>();
};

}  // namespace lockstep
