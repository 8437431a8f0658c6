// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/checkpoint/latest_tag.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <functional>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/accelerator/values/operations.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/call_scope.h"
#include "lockstep/comm/fail_together.h"
#include "lockstep/storage/deepspeed_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

std::optional<std::string> tag_in(const fs::path& folder) {
  std::ifstream file(folder / kLatest);
  std::string tag;
  if (!file || !std::getline(file, tag)) {
    return std::nullopt;
  }
  return tag;
}

}  // namespace

void check_tag(const std::string& tag) {
  if (tag.empty() || tag == "." || tag == ".." || tag == kLatest ||
      tag.find('/') != std::string::npos || tag.find('\n') != std::string::npos) {
    throw ConfigError(
        "checkpoint",
        fmt::format(
            "invalid tag '{}'; expected the name of a folder, like \"global_step100\"", tag));
  }
}

CheckpointError missing_tag_error(const fs::path& load_dir, const std::string& tag) {
  constexpr size_t kTagsShown = 20;
  std::vector<std::string> tags = storage::checkpoint_tags(load_dir);
  const size_t more = tags.size() - std::min(tags.size(), kTagsShown);
  tags.erase(tags.begin(), tags.begin() + static_cast<std::ptrdiff_t>(more));
  std::string existing = fmt::format("{} is not a folder", load_dir.string());
  std::error_code error;
  if (fs::is_directory(load_dir, error)) {
    existing = fmt::format(
        "{} holds {}{}",
        load_dir.string(),
        tags.empty() ? "no checkpoint" : fmt::format("the tags {}", fmt::join(tags, ", ")),
        more == 0 ? "" : fmt::format(", and {} more", more));
  }
  const bool is_latest = tag_in(load_dir) == tag;
  return {
      (load_dir / tag).string(),
      fmt::format(
          "does not exist{}; {}; give the tag of an existing checkpoint, and the folder that was "
          "given to save_checkpoint",
          is_latest ? fmt::format(", though {} names it", kLatest) : "",
          existing)};
}

LatestTag::LatestTag(Accelerator& accelerator, bool saves_on_each_host)
    : accelerator_(accelerator),
      on_each_host_(saves_on_each_host && !accelerator.world().on_one_host()) {}

bool LatestTag::is_writer() const {
  return on_each_host_ ? accelerator_.is_local_main_process() : accelerator_.is_main_process();
}

/// Lets no rank continue before `latest` is written everywhere, or all ranks have the failure.
void LatestTag::write(const fs::path& save_dir, const std::string& tag) const {
  std::optional<AtomicFile> prepared;
  const comm::CallScope call("save_checkpoint");
  std::optional<std::string> previous;
  bool is_renamed = false;
  const auto on_writers = [&](const std::function<void()>& step) {
    std::string failure;
    if (is_writer()) {
      try {
        step();
      } catch (const std::exception& error) {
        failure = error.what();
      }
    }
    return first_failure(accelerator_.group(), failure);
  };
  // Prepared first, so that a full or read-only disk is found before any host has the new tag.
  std::optional<FirstFailure> failed = on_writers([&] {
    previous = tag_in(save_dir);
    prepared.emplace(save_dir / kLatest);
    prepared->write(tag + "\n");
  });
  if (!failed) {
    failed = on_writers([&] {
      prepared->rename_to(save_dir / kLatest, /*replace=*/true);
      is_renamed = true;
    });
    if (failed) {
      on_writers([&] {
        if (is_renamed && previous) {
          AtomicFile restored(save_dir / kLatest);
          restored.write(*previous + "\n");
          restored.rename_to(save_dir / kLatest, /*replace=*/true);
        } else if (is_renamed) {
          fs::remove(save_dir / kLatest);
        }
      });
    }
  }
  if (failed) {
    throw CheckpointError(
        (save_dir / tag).string(),
        fmt::format(
            "is saved, but the file latest was not written: rank {}: {}",
            failed->rank,
            failed->why));
  }
}

std::string LatestTag::read(const fs::path& load_dir) const {
  const std::string own = is_writer() ? tag_in(load_dir).value_or("") : "";
  Group group = accelerator_.group();  // Also the stages of a pipeline.
  const std::vector<nlohmann::json> all = gather_object(group, own);
  if (!on_each_host_) {
    return all.front().get<std::string>();
  }
  std::vector<std::string> tags;
  for (const nlohmann::json& each : all) {
    const auto tag = each.get<std::string>();
    if (!tag.empty() && std::find(tags.begin(), tags.end(), tag) == tags.end()) {
      tags.push_back(tag);
    }
  }
  return tag_on_all_hosts(load_dir, tags);
}

/// Hosts differ if the job died after one of them had written `latest`, and before another had.
std::string LatestTag::tag_on_all_hosts(
    const fs::path& load_dir, const std::vector<std::string>& tags) const {
  for (const std::string& tag : tags) {
    check_tag(tag);
    const std::string missing =
        fs::exists(load_dir / tag)
            ? ""
            : fmt::format("host {} has no {}", describe_machine().system.host, tag);
    const std::optional<FirstFailure> failed = first_failure(accelerator_.group(), missing);
    if (!failed) {
      if (tags.size() > 1) {
        log_warning(fmt::format(
            "hosts name different checkpoints in {}: {}; {} is loaded, which all hosts have",
            (load_dir / kLatest).string(),
            fmt::join(tags, ", "),
            tag));
      }
      return tag;
    }
    if (tag == tags.back()) {
      throw CheckpointError(
          (load_dir / tag).string(),
          fmt::format(
              "rank {}: {}; each host needs the files that its ranks saved: copy them to it, or "
              "give a tag that all hosts have",
              failed->rank,
              failed->why));
    }
  }
  return "";
}

}  // namespace lockstep
