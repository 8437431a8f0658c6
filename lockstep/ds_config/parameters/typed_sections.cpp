// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ds_config/parameters/typed_sections.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text/suggest.h"
#include "lockstep/base/text/words.h"
#include "lockstep/ds_config/parameters/parameter_table.h"
#include "lockstep/ds_config/parameters/schedule_of.h"

namespace lockstep::ds_config {

using config::Entry;
using config::Node;

namespace {

ParameterValue value_of(const KeySpec& spec, const Node& node) {
  switch (spec.kind) {
    case KeyKind::kBoolean:
      return *truth_of(node);
    case KeyKind::kInteger:
      return *integer_of(node);
    case KeyKind::kNumber:
      return *number_of(node);
    case KeyKind::kChoice:
      return *word_among(node.text, spec.choices);
    default:
      break;
  }
  std::vector<double> numbers;
  for (const Node& item : node.items) {
    const bool is_null = item.kind == Node::Kind::kNull;
    numbers.push_back(is_null ? std::numeric_limits<double>::quiet_NaN() : *number_of(item));
  }
  return node.kind == Node::Kind::kList ? numbers : std::vector<double>{*number_of(node)};
}

const ParameterSpec* find_parameter(const TypeSpec& type, const std::string& name) {
  const auto found =
      std::find_if(type.parameters.begin(), type.parameters.end(), [&](const ParameterSpec& spec) {
        return spec.key.path == name;
      });
  return found == type.parameters.end() ? nullptr : &*found;
}

std::vector<std::string> names_of(const TypeSpec& type) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : type.parameters) {
    names.push_back(spec.key.path);
  }
  return names;
}

/// Returns the accepted names; with `with_refused` also the refused ones, for suggestions.
std::vector<std::string> names_of(const std::vector<TypeSpec>& types, bool with_refused) {
  std::vector<std::string> names;
  for (const TypeSpec& type : types) {
    if (with_refused || !type.refused) {
      names.push_back(type.name);
    }
  }
  return names;
}

/// A section of `type` and `params`.
class TypedSection {
 public:
  TypedSection(KeyReader& reader, std::string path) : reader_(reader), path_(std::move(path)) {}

  bool exists() const { return reader_.find(path_) != nullptr; }
  const KeyValue* type() const { return reader_.find(path_ + ".type"); }

  /// Returns null, after an error, if the file does not name a supported type.
  const TypeSpec* read_type(const std::vector<TypeSpec>& types, bool any_case) const {
    const KeyValue* const found = type();
    if (found == nullptr) {
      const KeyValue& section = *reader_.find(path_);
      if (section.value->find("type") == nullptr) {
        reader_.error(
            section.key, fmt::format("{0} has no type; expected a name; set {0}.type", path_));
      }
      return nullptr;
    }
    const std::string& name = found->value->text;
    const TypeSpec* const spec = find_type(types, name, any_case);
    if (spec == nullptr) {
      reader_.error(
          found->value->place,
          fmt::format(
              "unknown {}.type; got \"{}\", expected one of {}{}",
              path_,
              shown(name),
              fmt::join(names_of(types, false), ", "),
              did_you_mean(name, names_of(types, true))));
      return nullptr;
    }
    if (spec->refused) {
      reader_.error(
          found->value->place,
          fmt::format("{}.type {} is refused: {}", path_, spec->name, spec->description));
      return nullptr;
    }
    return spec;
  }

  /// Returns all parameters of the type, in its order.
  Parameters read_params(const TypeSpec& type) const {
    const KeyValue* const params = reader_.find(path_ + ".params");
    std::vector<std::optional<KeyValue>> found(type.parameters.size());
    static const std::vector<Entry> none;
    for (const Entry& entry : params == nullptr ? none : params->value->entries) {
      const std::string name = fmt::format("{}.params.{}", path_, entry.key);
      const ParameterSpec* const spec = find_parameter(type, entry.key);
      if (spec == nullptr) {
        reader_.error(
            entry.place,
            fmt::format(
                "{} has no parameter '{}'{}",
                type.name,
                shown(entry.key),
                did_you_mean(entry.key, names_of(type))));
      } else if (reader_.check_entry(spec->key, entry, name)) {
        found[static_cast<size_t>(spec - type.parameters.data())] =
            KeyValue{.value = &entry.value, .key = entry.place, .is_auto = is_auto(entry.value)};
      }
    }
    Parameters parameters;
    for (size_t i = 0; i < found.size(); ++i) {
      add(type.parameters[i], found[i], params, parameters);
    }
    return parameters;
  }

 private:
  void add(
      const ParameterSpec& spec,
      const std::optional<KeyValue>& found,
      const KeyValue* params,
      Parameters& parameters) const {
    const std::string& name = spec.key.path;
    if (found && !found->is_auto) {
      parameters.add({name, {value_of(spec.key, *found->value), reader_.origin_of(*found)}});
    } else if (spec.default_value) {
      parameters.add({name, {*spec.default_value, found ? reader_.origin_of(*found) : Origin{}}});
    } else if (spec.required && (params == nullptr || params->value->find(name) == nullptr)) {
      reader_.error(
          (params == nullptr ? type() : params)->key,
          fmt::format("{}.params.{} is missing and has no default; set it", path_, name));
    }
  }

  KeyReader& reader_;
  std::string path_;
};

void check_adam(KeyReader& reader, const KeyValue& type, OptimizerSection& section) {
  Parameters& parameters = section.parameters;
  const bool decoupled = parameters.flag("adam_w_mode");
  if (section.name.value == "adamw" && !decoupled) {
    reader.error(
        type.value->place,
        "AdamW cannot be combined with adam_w_mode false; write type Adam, or delete adam_w_mode");
  }
  if (section.name.value == "adam" && decoupled) {
    section.name = {
        "adamw",
        {Origin::Kind::kDerived,
         fmt::format("Adam at {} with adam_w_mode true, its default", section.name.origin.text)}};
    reader.note(
        type.value->place,
        "Adam means AdamW, as in DeepSpeed; write adam_w_mode: false for weight decay that is "
        "added to the gradient");
  }
  const bool is_default = parameters.origin("weight_decay").kind == Origin::Kind::kDefault;
  if (section.name.value == "adamw" && parameters.flag("torch_adam") && is_default) {
    constexpr double kTorchsDecay = 0.01;
    parameters.replace(
        {"weight_decay", {kTorchsDecay, {Origin::Kind::kDerived, "torch_adam: torch's default"}}});
  }
}

void read_optimizer(KeyReader& reader, DsConfig& config) {
  const TypedSection typed(reader, "optimizer");
  const TypeSpec* const type = typed.exists() ? typed.read_type(optimizer_types(), true) : nullptr;
  if (type == nullptr) {
    return;
  }
  OptimizerSection& section = config.optimizer.emplace();
  section.name = {lower(type->name), reader.origin_of(*typed.type())};
  section.parameters = typed.read_params(*type);
  if (section.parameters.has("adam_w_mode")) {
    check_adam(reader, *typed.type(), section);
  }
  if (section.parameters.has("nesterov") && section.parameters.flag("nesterov") &&
      (section.parameters.number("momentum") == 0 || section.parameters.number("dampening") != 0)) {
    reader.error(
        typed.type()->value->place,
        "nesterov needs a momentum above 0 and a dampening of 0; set them, or delete nesterov");
  }
}

/// Replaces "auto" for the highest rate by the optimizer's rate, as Accelerate does.
void fill_rate(KeyReader& reader, const KeyValue& type, DsConfig& config) {
  Parameters& parameters = config.scheduler->parameters;
  const std::string name = "warmup_max_lr";
  if (!parameters.has(name) || parameters.origin(name).kind != Origin::Kind::kDefault ||
      parameters.origin(name).text.empty()) {
    return;
  }
  if (!config.optimizer) {
    reader.error(
        type.value->place,
        "scheduler.params.warmup_max_lr is \"auto\", the optimizer's lr, but the file has no "
        "optimizer; write the rate");
    return;
  }
  if (!config.optimizer->parameters.has("lr")) {
    return;  // Already reported.
  }
  parameters.replace(
      {name,
       {std::vector<double>{config.optimizer->parameters.number("lr")},
        {Origin::Kind::kDerived, "optimizer.params.lr, " + parameters.origin(name).text}}});
}

void read_scheduler(KeyReader& reader, DsConfig& config) {
  const TypedSection typed(reader, "scheduler");
  const TypeSpec* const type = typed.exists() ? typed.read_type(schedule_types(), false) : nullptr;
  if (type == nullptr) {
    return;
  }
  const size_t errors_before = reader.error_count();
  SchedulerSection section;
  section.name = {type->name, reader.origin_of(*typed.type())};
  section.parameters = typed.read_params(*type);
  config.scheduler = std::move(section);
  fill_rate(reader, *typed.type(), config);
  if (reader.error_count() != errors_before) {
    return;
  }
  try {
    config.scheduler->schedule = schedule_of(*config.scheduler);
  } catch (const ConfigError& error) {
    reader.error(typed.type()->key, fmt::format("scheduler.params: {}", error.what()));
  }
}

}  // namespace

void read_typed_sections(KeyReader& reader, DsConfig& config) {
  read_optimizer(reader, config);
  read_scheduler(reader, config);
}

}  // namespace lockstep::ds_config
