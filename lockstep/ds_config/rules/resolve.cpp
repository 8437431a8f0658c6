// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/ds_config/keys/key_table.h"
#include "lockstep/ds_config/parameters/typed_sections.h"
#include "lockstep/ds_config/rules/batch_sizes.h"
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {

using config::Document;
using config::Place;

namespace {

/// Sorts by line and column, and puts those at `last` after all others.
void sort_by_place(std::vector<Diagnostic>& diagnostics, std::optional<Place> last = std::nullopt) {
  const auto order_of = [last](const Diagnostic& diagnostic) {
    const bool of_file =
        last && diagnostic.place.line == last->line && diagnostic.place.column == last->column;
    return std::tuple(of_file, diagnostic.place.line, diagnostic.place.column);
  };
  std::stable_sort(
      diagnostics.begin(), diagnostics.end(), [&](const Diagnostic& a, const Diagnostic& b) {
        return order_of(a) < order_of(b);
      });
}

/// Notes a default that differs between versions of DeepSpeed.
void note_clipping(KeyReader& reader, Place file, const DsConfig& config) {
  if (config.gradient_clipping.origin.kind == Origin::Kind::kDefault) {
    reader.note(
        file,
        fmt::format(
            "gradient_clipping is not given, so gradients are clipped to a norm of {:.1f}, as in "
            "DeepSpeed 0.19; older versions, such as 0.16, did not clip: write 0 for that",
            config.gradient_clipping.value));
  }
}

}  // namespace

std::string described(const Origin& origin) {
  switch (origin.kind) {
    case Origin::Kind::kFile:
      return origin.text;
    case Origin::Kind::kDerived:
      return "derived: " + origin.text;
    case Origin::Kind::kDefault:
      return origin.text.empty() ? "default" : "default: " + origin.text;
  }
  return "";
}

Reading read_ds_config(const Document& document, std::optional<int64_t> world_size) {
  Reading reading;
  KeyReader reader(document, reading);
  DsConfig& config = reading.config;
  const config::Node& root = document.root;
  if (root.kind != config::Node::Kind::kMap) {
    reader.error(
        root.place,
        fmt::format(
            "invalid configuration; got {}, expected keys and values in {{ }}", shown(root)));
    return reading;
  }
  reader.check(root, "");
  visit_fields(
      config, [&](const std::string& path, const auto& field) { reader.take(path, field); });
  read_typed_sections(reader, config);
  apply_schedule_rules(reader, config);
  apply_precision_rules(reader, config);
  apply_zero_rules(reader, world_size, config);
  apply_dtype_rules(reader, config);
  apply_watching_rules(reader, config);
  apply_activation_rules(reader, config);
  apply_parallel_rules(reader, world_size, config);
  if (world_size) {
    const int64_t ranks = std::max<int64_t>(1, *world_size / config.ranks_of_sample());
    apply_batch_rule(reader, root.place, ranks, config);
  }
  note_clipping(reader, root.place, config);
  // Errors about the complete file may be consequences: a missing key may be misspelt.
  sort_by_place(reading.errors, root.place);
  sort_by_place(reading.notes);
  return reading;
}

Document read_ds_document(const std::filesystem::path& path) {
  return config::read_document(path, config::Format::kCommentedJson);
}

void expect_no_errors(const Reading& reading) {
  if (reading.errors.empty()) {
    return;
  }
  std::string what = reading.errors.front().what;
  for (size_t i = 1; i < reading.errors.size(); ++i) {
    what += fmt::format("\n[{}] {}", reading.errors[i].where, reading.errors[i].what);
  }
  throw ConfigError(reading.errors.front().where, what);
}

DsConfig resolve_ds_config(const Document& document, int64_t world_size) {
  Reading reading = read_ds_config(document, world_size);
  expect_no_errors(reading);
  for (const Diagnostic& note : reading.notes) {
    log_info(fmt::format("[{}] {}", note.where, note.what));
  }
  return std::move(reading.config);
}

}  // namespace lockstep::ds_config
