// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/ds_config/keys/key_specs.h"
#include "lockstep/ds_config/rules/section_rules.h"

namespace lockstep::ds_config {
namespace {

using config::Entry;
using config::Node;

constexpr const char* kSpecs = "tensor_parallel.partition_config.layer_specs";

/// The keys of an element of layer_specs.
const std::vector<KeySpec>& layer_keys() {
  static const std::vector<KeySpec> keys = {
      works("patterns", KeyKind::kTexts, ""),
      {.path = "partition_type",
       .kind = KeyKind::kChoice,
       .choices = {"column", "row", "skip"},
       .auto_rule = AutoRule::kRefused},
      nullable(works("shape", KeyKind::kAny, "")),
      nullable(no_auto(integer("partition_dim", 0, ""))),
      no_auto(works("gather_output", KeyKind::kBoolean, "")),
      no_auto(works("grad_allreduce", KeyKind::kBoolean, "")),
      nullable(refused(
          "model_types",
          "an engine has one model; write layer_specs for it, in a file of its own if needed"))};
  return keys;
}

/// Reads one element of layer_specs.
class LayerReader {
 public:
  LayerReader(KeyReader& reader, const Node& node) : reader_(reader), node_(node) {}

  LayerSpec read() {
    check_keys();
    LayerSpec spec;
    if (const Node* const type = valid("partition_type")) {
      const auto& words = kWordsOf<LayerPartition>;
      const std::string word = *word_among(type->text, {words.begin(), words.end()});
      spec.partition = static_cast<LayerPartition>(std::ranges::find(words, word) - words.begin());
    }
    read_patterns(spec);
    spec.gather_output = flag("gather_output");
    spec.grad_allreduce = flag("grad_allreduce");
    if (spec.gather_output && spec.partition != LayerPartition::kColumn) {
      error(
          "gather_output",
          "gather_output is true; expected false, unless partition_type is column");
    }
    if (spec.grad_allreduce && spec.partition != LayerPartition::kSkip) {
      error(
          "grad_allreduce",
          "grad_allreduce is true; expected false, unless partition_type is skip");
    }
    check_dim(spec);
    read_shape(spec);
    return spec;
  }

 private:
  void check_keys() {
    std::vector<std::string> names;
    for (const KeySpec& key : layer_keys()) {
      names.push_back(key.path);
    }
    for (const Entry& entry : node_.entries) {
      const auto found = std::ranges::find(layer_keys(), entry.key, &KeySpec::path);
      const std::string name = fmt::format("{}.{}", kSpecs, entry.key);
      if (found == layer_keys().end()) {
        reader_.unknown(entry, name, names);
      } else if (reader_.check_entry(*found, entry, name)) {
        valid_.push_back(&entry);
      }
    }
  }

  /// Returns null if the key is absent or invalid.
  const Node* valid(const std::string& key) const {
    const auto found =
        std::ranges::find_if(valid_, [&](const Entry* entry) { return entry->key == key; });
    return found == valid_.end() ? nullptr : &(*found)->value;
  }

  bool flag(const char* key) const {
    const Node* const node = valid(key);
    return node != nullptr && *truth_of(*node);
  }

  void error(const char* key, const std::string& what) {
    const Node* const node = node_.find(key);
    reader_.error(node == nullptr ? node_.place : node->place, fmt::format("{}: {}", kSpecs, what));
  }

  void read_patterns(LayerSpec& spec) {
    const Node* const node = valid("patterns");
    if (node != nullptr && node->kind == Node::Kind::kScalar) {
      spec.patterns = {node->text};
    }
    for (const Node& item : node == nullptr ? std::vector<Node>() : node->items) {
      spec.patterns.push_back(item.text);
    }
    if (spec.patterns.empty()) {
      error("patterns", "patterns is empty; expected regular expressions of the names of weights");
    }
    for (const std::string& pattern : spec.patterns) {
      if (pattern.find("\\Z") != std::string::npos || pattern.find("\\A") != std::string::npos) {
        error(
            "patterns",
            fmt::format(
                "\"{}\" has \\A or \\Z, which only Python's regular expressions know; expected ^ "
                "or $",
                shown(pattern)));
        continue;
      }
      try {
        static_cast<void>(std::regex(pattern));
      } catch (const std::regex_error& fault) {
        error(
            "patterns",
            fmt::format(
                "\"{}\" is not a regular expression of ECMAScript ({}); expected one like "
                "\".*\\\\.up_proj\\\\.weight$\"",
                shown(pattern),
                fault.what()));
      }
    }
  }

  /// Refuses dimensions other than those of a weight's outputs and inputs.
  void check_dim(const LayerSpec& spec) {
    const Node* const node = valid("partition_dim");
    const int64_t expected = spec.partition == LayerPartition::kRow ? 1 : 0;
    if (node != nullptr && *integer_of(*node) != expected) {
      error(
          "partition_dim",
          fmt::format(
              "partition_dim is {}; expected {} with partition_type {}: a matrix is divided by its "
              "outputs (column, 0) or its inputs (row, 1)",
              *integer_of(*node),
              expected,
              word_of(spec.partition)));
    }
  }

  void read_shape(LayerSpec& spec) {
    const Node* const node = valid("shape");
    if (node == nullptr) {
      return;
    }
    const size_t dim = spec.partition == LayerPartition::kRow ? 1 : 0;
    const bool is_matrix = node->kind == Node::Kind::kList && node->items.size() == 2 &&
                           integer_of(node->items[1 - dim]) == -1;
    const auto sizes = is_matrix ? sizes_of(node->items[dim]) : std::nullopt;
    if (!sizes || spec.partition == LayerPartition::kSkip) {
      error(
          "shape",
          "expected [sizes, -1] with partition_type column, or [-1, sizes] with row, where sizes "
          "is a number of equal layers, or a list of their sizes: other shapes are not divided");
      return;
    }
    spec.fused = *sizes;
  }

  /// Reads a number of equal layers, -1, or a list of sizes.
  static std::optional<std::vector<int64_t>> sizes_of(const Node& node) {
    constexpr int64_t kMostLayers = 1024;
    if (node.kind != Node::Kind::kList) {
      const std::optional<int64_t> count = integer_of(node);
      if (count == -1 || count == 1) {
        return std::vector<int64_t>();
      }
      if (!count || *count < 1 || *count > kMostLayers) {
        return std::nullopt;
      }
      return std::vector<int64_t>(static_cast<size_t>(*count), 1);
    }
    std::vector<int64_t> sizes;
    for (const Node& item : node.items) {
      const std::optional<int64_t> size = integer_of(item);
      if (!size || *size < 1) {
        return std::nullopt;
      }
      sizes.push_back(*size);
    }
    return sizes.empty() ? std::nullopt : std::optional(sizes);
  }

  KeyReader& reader_;
  const Node& node_;
  std::vector<const Entry*> valid_;
};

void read_layers(KeyReader& reader, TensorParallelSection& section) {
  const KeyValue* const partition = reader.find("tensor_parallel.partition_config");
  if (partition == nullptr && !section.preset_model.value) {
    return;
  }
  std::vector<LayerSpec>& layers = section.layers.emplace();
  if (const KeyValue* const specs = reader.find(kSpecs)) {
    for (const Node& item : specs->value->items) {
      layers.push_back(LayerReader(reader, item).read());
    }
  }
  if (section.preset_model.value && (partition == nullptr || section.use_default_specs.value)) {
    const std::vector<LayerSpec> preset =
        preset_layers(*word_among(*section.preset_model.value, preset_models()));
    layers.insert(layers.end(), preset.begin(), preset.end());
  }
}

/// Reports an error unless `size` is 1 or autotp_size.
void expect_same_size(
    KeyReader& reader,
    const std::string& path,
    int64_t size,
    const TensorParallelSection& section) {
  const int64_t expected = section.autotp_size.value;
  if (size != 1 && size != expected) {
    refuse_key(
        reader,
        path,
        fmt::format("is {}, but tensor_parallel.autotp_size is {}; delete it", size, expected));
  }
}

}  // namespace

void apply_parallel_rules(KeyReader& reader, std::optional<int64_t> world_size, DsConfig& config) {
  TensorParallelSection& section = config.tensor_parallel;
  read_layers(reader, section);
  expect_same_size(reader, "tensor_parallel.tp.tp_size", section.tp_size.value, section);
  expect_same_size(
      reader, "tensor_parallel.partition_config.tp_size", section.partition_tp_size.value, section);
  if (section.dtype.value && *section.dtype.value != config.precision.value) {
    refuse_key(
        reader,
        "tensor_parallel.dtype",
        fmt::format(
            "is {}, but the file computes in {}; expected the same: delete it, or set fp16.enabled "
            "or bf16.enabled",
            word_of(*section.dtype.value),
            word_of(config.precision.value)));
  }
  if (!world_size) {
    return;
  }
  const int64_t each = config.ranks_of_sample();
  if (*world_size % each != 0) {
    refuse_key(
        reader,
        section.autotp_size.value > 1 ? "tensor_parallel.autotp_size" : "sequence_parallel_size",
        fmt::format(
            "does not divide the ranks: {} of them compute a sample together, and there are {}; "
            "expected a divisor",
            each,
            *world_size));
  } else if (const auto given = config.data_parallel_size.value;
             given && *given != *world_size / each) {
    refuse_key(
        reader,
        "data_parallel_size",
        fmt::format(
            "is {}, but {} ranks have samples of their own; delete it",
            *given,
            *world_size / each));
  }
}

}  // namespace lockstep::ds_config
