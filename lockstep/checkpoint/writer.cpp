// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/parallel.h"
#include "lockstep/base/rank.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/weights/safetensors.h"
#include "lockstep/comm/byte_collectives.h"
#include "lockstep/storage/catalog/catalog.h"
#include "lockstep/storage/file/output_file.h"
#include "lockstep/storage/safetensors/json_text.h"
#include "lockstep/storage/write/publish.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Returns an absolute path, since the program may change its working folder before the commit.
fs::path absolute_target(const fs::path& target) {
  const fs::path absolute = fs::absolute(target);
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

/// Overwriting removes a folder with all files, so the target must be a checkpoint.
bool may_be_replaced(const fs::path& target) {
  return fs::symlink_status(target).type() == fs::file_type::directory &&
         (fs::is_empty(target) || storage::name_exists(target / storage::kManifestName));
}

/// Gives the finished folder the permissions of the process's umask. They are read from a file,
/// since reading the umask itself would change it for other threads.
void copy_permissions(const fs::path& folder, const fs::path& file) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) {
    storage::throw_errno(file, "cannot be examined");
  }
  const mode_t files = status.st_mode & 0666;
  if (chmod(folder.c_str(), 0700 | files | ((files & 0444) >> 2)) != 0) {
    storage::throw_errno(folder, "cannot be made readable for other users");
  }
}

storage::FileSummary write_text(const fs::path& path, const std::string& text) {
  storage::OutputFile file(path);
  file.append(text);
  file.finish();
  return {.bytes = file.bytes(), .crc32c = file.crc32c(), .tensors = {}};
}

}  // namespace

Group with_saving_timeout(const Group& group) {
  constexpr comm::Milliseconds kSavingTimeout = std::chrono::hours(6);
  return group.with_timeout(std::max(group.timeout(), kSavingTimeout));
}

// Delegates, so that the destructor runs if the rest throws.
Writer::Writer(const Group& group, const fs::path& target, WriterOptions options)
    : Writer(group, target, Unstarted()) {
  overwrite_ = options.overwrite;
  threads_ = std::max(1, options.threads);
  attempt([&] { target_ = absolute_target(target); });
  if (group_.rank() == 0) {
    attempt([&] { make_folder(); });
  }
  const std::string named = broadcast_bytes(group_, target_.native());
  const std::string folder = broadcast_bytes(group_, folder_.native());
  if (group_.rank() != 0) {
    folder_ = folder;
    attempt([&] {
      if (named != target_.native()) {
        throw CheckpointError(
            target_,
            fmt::format("differs from the target of rank 0; expected {} on all ranks", named));
      }
      if (!folder.empty() && !fs::is_directory(folder_)) {
        throw CheckpointError(
            folder_,
            "was created by rank 0 and is not visible on this rank; use one file system, and the "
            "same working folder, for all ranks");
      }
    });
  }
  throw_together();
}

Writer::Writer(const Group& group, const fs::path& target, Unstarted /*unstarted*/)
    : group_(with_saving_timeout(group)), target_(target) {}

Writer::~Writer() {
  abandon();
}

void Writer::make_folder() {
  const std::string name = target_.filename();
  if (name.empty() || name == "." || name == "..") {
    throw CheckpointError(target_, "is not a valid name of a checkpoint; try checkpoints/step_100");
  }
  storage::make_folders(target_.parent_path());
  storage::remove_stale(target_.parent_path());
  check_target();
  const fs::path folder = storage::temporary_name(target_);
  owned_.emplace(folder);
  folder_ = folder;
}

bool Writer::check_target() const {
  if (!storage::name_exists(target_)) {
    return false;
  }
  if (!overwrite_) {
    throw CheckpointError(target_, "already exists; try another name, or set overwrite");
  }
  if (!may_be_replaced(target_)) {
    throw CheckpointError(
        target_,
        "exists and is not a checkpoint, so overwrite does not replace it; try another name");
  }
  return true;
}

void Writer::attempt(const std::function<void()>& step) {
  if (!failure_.empty()) {
    return;
  }
  try {
    step();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void Writer::fail(const std::string& why) {
  if (failure_.empty()) {
    // refuse() adds the rank.
    failure_ = without_rank_suffix(why);
    if (failure_.empty()) {
      failure_ = "no reason given";
    }
  }
}

void Writer::throw_together() {
  if (const auto failed = first_failure(group_, failure_)) {
    refuse(*failed);
  }
}

void Writer::refuse(const FirstFailure& failed) {
  abandon();
  throw CheckpointError(
      target_, fmt::format("is not saved; rank {} failed: {}", failed.rank, failed.why));
}

void Writer::add(const std::string& file_name, const std::function<storage::FileSummary()>& write) {
  if (folder_.empty()) {
    throw ConfigError("Writer", "the file was added after commit; add all files before commit");
  }
  attempt([&] {
    storage::check_file_name(target_, file_name);
    files_.push_back({file_name, write()});
  });
}

void Writer::add_tensors(
    const std::string& file_name,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata) {
  add(file_name, [&] { return write_safetensors(folder_ / file_name, tensors, metadata); });
}

void Writer::add_json(const std::string& file_name, const Json& value) {
  add(file_name, [&] {
    const fs::path path = folder_ / file_name;
    return write_text(path, storage::render_json(path, value));
  });
}

void Writer::write(const Contents& contents) {
  if (!contents.failure().empty()) {
    fail(contents.failure());
  }
  for (const auto& [what, value] : contents.agreed()) {
    agreed_[what] = value;
  }
  if (folder_.empty() || !failure_.empty()) {
    return;
  }
  const std::vector<FileContents>& files = contents.files();
  std::vector<storage::FileRecord> records(files.size());
  attempt([&] {
    for_each_index(files.size(), threads_, [&](size_t i) {
      const FileContents& file = files[i];
      storage::check_file_name(target_, file.name);
      const fs::path path = folder_ / file.name;
      records[i] = {
          file.name,
          file.json ? write_text(path, storage::render_json(path, *file.json))
                    : write_safetensors(path, file.tensors, file.metadata)};
    });
  });
  // Files that were written before a failure must be removed, too.
  std::copy_if(records.begin(), records.end(), std::back_inserter(files_), [](const auto& record) {
    return !record.name.empty();
  });
}

void Writer::add_own(const std::function<void(const fs::path& folder)>& write) {
  try {
    write(folder_);  // After a failure, too: the other ranks take part.
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

std::string Writer::own_report() const {
  Json records = Json::array();
  for (const storage::FileRecord& record : files_) {
    records.push_back(storage::to_json(record));
  }
  return Json{{"agreed", agreed_}, {"files", records}}.dump();
}

void Writer::check_agreement(const std::vector<std::string>& reports) const {
  const Json first = Json::parse(reports.front()).at("agreed");
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const Json other = Json::parse(reports[rank]).at("agreed");
    Json both = first;
    both.update(other);
    for (const auto& [what, unused] : both.items()) {
      if (!first.contains(what) || !other.contains(what) || first.at(what) != other.at(what)) {
        throw CheckpointError(
            target_,
            fmt::format(
                "is not saved; ranks disagree on {}: rank {} has {}, rank 0 has {}",
                what,
                rank,
                other.value(what, "none"),
                first.value(what, "none")));
      }
    }
  }
}

void Writer::commit(const Json& meta) {
  if (folder_.empty()) {
    throw ConfigError("Writer", "commit was called twice; a Writer saves one checkpoint");
  }
  std::string report;
  attempt([&] { report = own_report(); });
  throw_together();
  const std::vector<std::string> reports = all_gather_bytes(group_, report);
  if (group_.rank() == 0) {
    attempt([&] {
      check_agreement(reports);
      commit_on_disk(meta, reports);
    });
  }
  const std::string failure = broadcast_bytes(group_, failure_);
  if (!failure.empty()) {
    refuse({.rank = 0, .why = failure});
  }
  folder_.clear();
}

void Writer::commit_on_disk(const Json& meta, const std::vector<std::string>& reports) {
  storage::Manifest manifest{
      .sequence = storage::next_sequence(target_.parent_path()),
      .world_size = group_.size(),
      .meta = meta,
      .files = {}};
  for (const std::string& report : reports) {
    const Json written = Json::parse(report);
    for (const Json& record : written.at("files")) {
      manifest.files.push_back(storage::file_record_from_json(target_, record));
    }
  }
  std::sort(manifest.files.begin(), manifest.files.end(), [](const auto& left, const auto& right) {
    return left.name < right.name;
  });
  const fs::path path = folder_ / storage::kManifestName;
  write_text(path, storage::render_manifest(path, manifest));
  copy_permissions(folder_, path);
  storage::sync_folder(folder_);
  storage::publish(folder_, target_, check_target());
  folder_.clear();
  owned_.reset();  // So that pruning need not wait for the destructor of this Writer.
}

void Writer::abandon() noexcept {
  if (folder_.empty()) {
    return;
  }
  std::error_code ignored;
  try {
    if (group_.rank() == 0) {
      // Repeated if other ranks remove their files meanwhile.
      for (int tries = 0; tries < 3 && fs::exists(folder_, ignored); ++tries) {
        fs::remove_all(folder_, ignored);
      }
    } else {
      for (const storage::FileRecord& record : files_) {
        fs::remove(folder_ / record.name, ignored);
      }
      // Fails while the folder is not empty. Needed if rank 0 removed it too early to succeed.
      fs::remove(folder_, ignored);
    }
  } catch (const std::exception&) {
    // Only for lack of memory; remove_stale removes the folder later.
  }
  folder_.clear();
}

}  // namespace lockstep::checkpoint
