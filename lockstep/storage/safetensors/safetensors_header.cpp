// SPDX-License-Identifier: Apache-2.0
#include "lockstep/storage/safetensors/safetensors_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"

namespace lockstep::storage {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDimensions = 64;  // The limit of torch's TensorIterator.
constexpr const char* kMetadataKey = "__metadata__";

struct DtypeRow {
  const char* name;
  size_t bytes;
};

// In the order of Dtype.
constexpr std::array<DtypeRow, 19> kDtypes = {{
    {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
    {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},     {"F32", 4},
    {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8},
}};
static_assert(kDtypes.size() == static_cast<size_t>(Dtype::kU64) + 1);

// The format's dtypes whose elements share bytes. An offset or a stride of one element is then not
// a number of bytes.
constexpr std::array<std::string_view, 3> kSubByteDtypes = {"F4", "F6_E2M3", "F6_E3M2"};

std::optional<Dtype> dtype_named(const std::string& name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (name == kDtypes[i].name) {
      return static_cast<Dtype>(i);
    }
  }
  return std::nullopt;
}

/// Parses the JSON as events, so that a hostile header costs at most its length in memory, and
/// three levels of stack.
class HeaderParser final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderParser(const std::string& path) : path_(path) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(size_t /*elements*/) override {
    if (level_ == Level::kOutside) {
      level_ = Level::kRoot;
    } else if (level_ == Level::kRoot) {
      level_ = in_metadata_ ? Level::kMetadata : Level::kTensor;
      fields_ = {};
    } else {
      refuse_value("an object");
    }
    return true;
  }

  bool end_object() override {
    if (level_ == Level::kTensor) {
      if (!fields_.dtype || !fields_.shape || !fields_.offsets) {
        refuse("a field of the tensor is missing; expected dtype, shape and data_offsets");
      }
      header_.tensors.push_back(std::move(tensor_));
    }
    level_ = level_ == Level::kRoot ? Level::kOutside : Level::kRoot;
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (level_ == Level::kTensor && field_ == "shape") {
      level_ = Level::kShape;
    } else if (level_ == Level::kTensor && field_ == "data_offsets") {
      level_ = Level::kOffsets;
    } else {
      refuse_value("an array");
    }
    return true;
  }

  bool end_array() override {
    if (level_ == Level::kOffsets && offsets_seen_ != 2) {
      refuse(fmt::format("data_offsets has {} numbers, expected 2", offsets_seen_));
    }
    level_ = Level::kTensor;
    return true;
  }

  bool key(string_t& name) override {
    if (level_ == Level::kRoot) {
      start_entry(name);
    } else if (level_ == Level::kMetadata) {
      metadata_key_ = name;
      if (header_.metadata.contains(name)) {
        refuse(fmt::format("the metadata has the key {} twice", in_quotes(name)));
      }
    } else {
      start_field(name);
    }
    return true;
  }

  bool string(string_t& value) override {
    if (level_ == Level::kMetadata) {
      header_.metadata.emplace(metadata_key_, std::move(value));
    } else if (level_ == Level::kTensor && field_ == "dtype") {
      const std::optional<Dtype> dtype = dtype_named(value);
      if (std::ranges::count(kSubByteDtypes, value) != 0) {
        refuse(fmt::format(
            "the dtype {} packs several elements into a byte, which Lockstep does not read; "
            "expected a dtype of full bytes",
            value));
      }
      if (!dtype) {
        refuse(fmt::format("the dtype {} is unknown", in_quotes(value)));
      }
      tensor_.dtype = *dtype;
    } else {
      refuse_value("a string");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ == Level::kShape) {
      if (!std::in_range<int64_t>(value)) {
        refuse(fmt::format("a dimension of {} is too large", value));
      }
      if (tensor_.shape.size() == kMaxDimensions) {
        refuse(fmt::format("the shape has more than {} dimensions", kMaxDimensions));
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else if (level_ == Level::kOffsets && offsets_seen_ < 2) {
      (offsets_seen_++ == 0 ? tensor_.begin : tensor_.end) = value;
    } else {
      refuse_value("a number");
    }
    return true;
  }

  bool null() override {
    // The reference implementation treats this as no metadata.
    if (level_ != Level::kRoot || !in_metadata_) {
      refuse_value("null");
    }
    return true;
  }

  bool boolean(bool /*value*/) override { refuse_value("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override { refuse_value("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    refuse_value("a number that is not whole, or too large");
  }
  bool binary(binary_t& /*value*/) override { refuse_value("binary data"); }

  bool parse_error(
      size_t position, const std::string& /*token*/, const Json::exception& why) override {
    // nlohmann's text repeats the invalid bytes, regardless of their number.
    refuse(fmt::format(
        "the header is not valid JSON at byte {}: {}",
        kLengthBytes + position,
        in_quotes(why.what())));
  }

 private:
  enum class Level { kOutside, kRoot, kMetadata, kTensor, kShape, kOffsets };
  struct Fields {
    bool dtype = false;
    bool shape = false;
    bool offsets = false;
  };

  void start_entry(const std::string& name) {
    tensor_ = {};
    in_metadata_ = name == kMetadataKey;
    if (!names_.insert(name).second) {
      refuse(fmt::format("the name {} occurs twice", in_quotes(name)));
    }
    if (!in_metadata_) {
      tensor_.name = name;
    }
  }

  void start_field(const std::string& name) {
    bool* seen = name == "dtype"          ? &fields_.dtype
                 : name == "shape"        ? &fields_.shape
                 : name == "data_offsets" ? &fields_.offsets
                                          : nullptr;
    if (seen == nullptr) {
      refuse(fmt::format("the field {} is unknown", in_quotes(name)));
    }
    if (*seen) {
      refuse(fmt::format("the field {} occurs twice", name));
    }
    *seen = true;
    field_ = name;
    offsets_seen_ = 0;
  }

  [[noreturn]] void refuse_value(const char* what) const {
    refuse(fmt::format("{} is not allowed at this position", what));
  }

  [[noreturn]] void refuse(const std::string& why) const {
    const bool in_tensor = level_ >= Level::kTensor;
    throw CheckpointError(
        path_, "has a bad header; " + why, in_tensor ? in_quotes(tensor_.name) : std::string());
  }

  const std::string& path_;
  SafetensorsHeader header_;
  std::set<std::string> names_;
  Level level_ = Level::kOutside;
  bool in_metadata_ = false;
  std::string metadata_key_;
  TensorEntry tensor_;
  Fields fields_;
  std::string field_;
  int offsets_seen_ = 0;
};

/// Returns the bytes of a tensor of that shape. Also limits products of the non-zero dimensions,
/// from which torch computes strides.
std::optional<uint64_t> expected_bytes(const TensorEntry& tensor) {
  uint64_t bytes = dtype_bytes(tensor.dtype) * 8;
  bool empty = false;
  for (const int64_t size : tensor.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(size, 1)), &bytes) ||
        !std::in_range<int64_t>(bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes / 8;
}

/// Throws unless every byte of the data belongs to exactly one tensor.
void check_layout(const std::string& path, const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t next = 0;
  for (const TensorEntry& tensor : header.tensors) {
    const auto refuse = [&](const std::string& why) {
      throw CheckpointError(path, "has a bad header; " + why, in_quotes(tensor.name));
    };
    if (tensor.begin != next || tensor.end < tensor.begin) {
      refuse(fmt::format(
          "the data leaves a gap or overlaps; got bytes {} to {}, expected them to begin at {}",
          tensor.begin,
          tensor.end,
          next));
    }
    const std::optional<uint64_t> expected = expected_bytes(tensor);
    if (!expected) {
      refuse("the shape has too many elements");
    }
    if (*expected != tensor.end - tensor.begin) {
      refuse(fmt::format(
          "the data has the wrong size; got {} bytes, expected {} for its shape of {}",
          tensor.end - tensor.begin,
          *expected,
          dtype_name(tensor.dtype)));
    }
    next = tensor.end;
  }
  if (next != data_bytes) {
    throw CheckpointError(
        path,
        fmt::format(
            "is truncated or has extra bytes; got {} bytes of data, expected {}",
            data_bytes,
            next));
  }
}

std::string json_string(const std::string& path, const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw CheckpointError(path, "cannot be written; the text is not UTF-8", in_quotes(text));
  }
}

}  // namespace

const char* dtype_name(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

size_t dtype_bytes(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bytes;
}

uint64_t safetensors_header_bytes(
    const std::string& path, std::string_view beginning, uint64_t file_bytes) {
  if (beginning.size() < kLengthBytes) {
    throw CheckpointError(
        path, fmt::format("is too short for a safetensors file; got {} bytes", file_bytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(beginning[i])) << (8 * i);
  }
  const uint64_t available = file_bytes - kLengthBytes;
  if (length > kMaxHeaderBytes || length > available) {
    throw CheckpointError(
        path,
        fmt::format(
            "has a bad header; it claims {} bytes, expected at most {}",
            length,
            std::min(kMaxHeaderBytes, available)));
  }
  return kLengthBytes + length;
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view file) {
  return parse_safetensors_header(path, file, file.size());
}

SafetensorsHeader parse_safetensors_header(
    const std::string& path, std::string_view beginning, uint64_t file_bytes) {
  const uint64_t data_begin = safetensors_header_bytes(path, beginning, file_bytes);
  const std::string_view text = beginning.substr(kLengthBytes, data_begin - kLengthBytes);
  // The parser would treat a NUL as the end of the text, and skip a byte order mark.
  if (text.empty() || text.front() != '{' || text.find('\0') != std::string_view::npos) {
    throw CheckpointError(
        path, "has a bad header; expected JSON that begins with { and holds no NUL byte");
  }
  HeaderParser parser(path);
  Json::sax_parse(text.begin(), text.end(), &parser);
  SafetensorsHeader header = parser.take();
  std::stable_sort(
      header.tensors.begin(), header.tensors.end(), [](const auto& left, const auto& right) {
        return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
      });
  header.data_begin = data_begin;
  check_layout(path, header, file_bytes - data_begin);
  return header;
}

std::string render_safetensors_header(const std::string& path, const SafetensorsHeader& header) {
  std::string text;
  std::set<std::string_view> names = {kMetadataKey};
  const auto separate = [&] { text += text.empty() ? '{' : ','; };
  if (!header.metadata.empty()) {
    separate();
    text += fmt::format("\"{}\":", kMetadataKey);
    char before = '{';
    for (const auto& [key, value] : header.metadata) {
      text += before + json_string(path, key) + ":" + json_string(path, value);
      before = ',';
    }
    text += '}';
  }
  for (const TensorEntry& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) {
      throw CheckpointError(
          path, "cannot be written; the name is used twice or reserved", in_quotes(tensor.name));
    }
    separate();
    text += fmt::format(
        R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
        json_string(path, tensor.name),
        dtype_name(tensor.dtype),
        Json(tensor.shape).dump(),
        tensor.begin,
        tensor.end);
  }
  text += text.empty() ? "{}" : "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw CheckpointError(
        path,
        fmt::format(
            "cannot be written; got a header of {} bytes, expected at most {}",
            text.size(),
            kMaxHeaderBytes));
  }
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes[i] = static_cast<char>(text.size() >> (8 * i) & 0xffU);
  }
  return bytes + text;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kShown = 120;
  std::string shown(text.substr(0, kShown));
  if (text.size() > kShown) {
    shown += "...";
  }
  return Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace lockstep::storage
