// SPDX-License-Identifier: Apache-2.0
#include "lockstep/config/document/document.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/test_errors.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::config {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using testing::ThrowsMessage;
using Kind = Node::Kind;

Document yaml(const std::string& text) {
  return parse_document("a.yaml", text, Format::kYaml);
}

Document json(const std::string& text) {
  return parse_document("a.json", text, Format::kJson);
}

std::string document_error(const std::string& text, Format format = Format::kYaml) {
  return error_of([&] { parse_document("f", text, format); });
}

std::string place_of(const Node& node) {
  return std::to_string(node.place.line) + ":" + std::to_string(node.place.column);
}

TEST(Yaml, ScalarsKeepTheirText) {
  const Document document = yaml(
      "no: no\n"
      "exponent: 1e3\n"
      "hex: 0x10\n"
      "grouped: 1_000\n"
      "time: 12:30:45\n"
      "octal: 010\n"
      "quoted: \"no\"\n"
      "single: 'it''s'\n"
      "escaped: \"a\\tb \\u00e4\"\n"
      "folded: >-\n  one\n  two\n"
      "umlaut: größe\n");
  const auto text = [&](const std::string& key) { return document.root.find(key)->text; };
  EXPECT_EQ(text("no"), "no");
  EXPECT_EQ(text("exponent"), "1e3");
  EXPECT_EQ(text("hex"), "0x10");
  EXPECT_EQ(text("grouped"), "1_000");
  EXPECT_EQ(text("time"), "12:30:45");
  EXPECT_EQ(text("octal"), "010");
  EXPECT_EQ(text("single"), "it's");
  EXPECT_EQ(text("escaped"), "a\tb ä");
  EXPECT_EQ(text("folded"), "one two");
  EXPECT_EQ(text("umlaut"), "größe");
  EXPECT_FALSE(document.root.find("no")->quoted);
  EXPECT_TRUE(document.root.find("quoted")->quoted);
  EXPECT_EQ(document.root.find("absent"), nullptr);
}

TEST(Yaml, NodesKnowTheirPlaces) {
  const Document document = yaml("# head\na: 1\nb:\n  c: [x, yy]\n");
  EXPECT_EQ(place_of(*document.root.find("a")), "2:4");
  const Node* const list = document.root.find("b")->find("c");
  ASSERT_EQ(list->items.size(), 2U);
  EXPECT_EQ(place_of(*list), "4:6");
  EXPECT_EQ(place_of(list->items[1]), "4:10");
  EXPECT_EQ(document.root.entries[1].place.line, 3);
  EXPECT_EQ(where(document, list->place), "a.yaml:4:6");
}

TEST(Yaml, AnAbsentValueIsNull) {
  EXPECT_EQ(yaml("").root.kind, Kind::kNull);
  EXPECT_EQ(yaml("# only a comment\n").root.kind, Kind::kNull);
  const Document document = yaml("a:\nb: ~\nc: null\nd: ''\n");
  for (const char* key : {"a", "b", "c"}) {
    EXPECT_EQ(document.root.find(key)->kind, Kind::kNull) << key;
  }
  EXPECT_EQ(document.root.find("d")->kind, Kind::kScalar);
}

TEST(Yaml, WindowsLinesAndAByteOrderMarkAreFine) {
  const Document document = yaml(
      "\xef\xbb\xbf"
      "a: 1\r\nb: two\r\n");
  EXPECT_EQ(document.root.find("a")->text, "1");
  EXPECT_EQ(document.root.find("b")->text, "two");
  EXPECT_EQ(document.root.find("b")->place.line, 2);
}

TEST(Yaml, AnAliasIsACopy) {
  const Document document = yaml("a: &x [1, {b: 2}]\nc: *x\nd: &y e\nf: *y\n");
  ASSERT_EQ(document.root.find("c")->items.size(), 2U);
  EXPECT_EQ(document.root.find("c")->items[1].find("b")->text, "2");
  EXPECT_EQ(document.root.find("f")->text, "e");
}

TEST(Yaml, MalformedTextIsNamedWithItsPlace) {
  EXPECT_THAT(document_error("a: [1, 2\nb: 3\n"), StartsWith("[f:"));
  for (const std::string open : {"\"open", "\"open\\\"", "'open", "'it''s", "'open''"}) {
    EXPECT_THAT(document_error("a: 1\nb: " + open), HasSubstr("invalid YAML")) << open;
    EXPECT_THAT(document_error("a: ä\nb: " + open + "\n"), StartsWith("[f:2:4] invalid")) << open;
    EXPECT_THAT(document_error("a: 1\r\nb: " + open + "\r\n"), HasSubstr("invalid")) << open;
  }
  EXPECT_THAT(document_error("a: b: c\n"), StartsWith("[f:1:5] invalid YAML"));
  EXPECT_THAT(document_error("a: 1\n b: 2\n"), StartsWith("[f:2:"));
  EXPECT_THAT(document_error("a: *x\n"), StartsWith("[f:1:4]"));
  EXPECT_THAT(document_error("a: 1\n\tb: 2\n"), StartsWith("[f:2:1] a tab indents the line"));
  EXPECT_THAT(document_error("a: 1\n---\nb: 2\n"), StartsWith("[f:2:1] a second document"));
  EXPECT_THAT(
      document_error("a: !!python/name:os.system x\n"), HasSubstr("tags are not supported; got "));
  EXPECT_THAT(document_error("a: 1\n@b: 2\n"), StartsWith("[f:2:1]"));
}

TEST(Yaml, KeysAreTextAndGivenOnce) {
  EXPECT_THAT(
      document_error("a: 1\nb: 2\na: 3\n"),
      StartsWith("[f:3:1] key 'a' is given twice, first in line 1"));
  EXPECT_THAT(
      document_error("a: {b: 1, \"b\": 2}\n"), StartsWith("[f:1:11] key 'b' is given twice"));
  EXPECT_THAT(document_error("[a, b]: c\n"), HasSubstr("got a list for a key"));
  EXPECT_THAT(document_error("? {a: b}\n: c\n"), HasSubstr("got a map for a key"));
  EXPECT_THAT(document_error("a: &x b\n? *x\n: c\n"), HasSubstr("got an alias for a key"));
  EXPECT_THAT(document_error("~: c\n"), HasSubstr("got nothing for a key"));
}

TEST(Document, BytesThatAreNotTextAreRefused) {
  for (const Format format : {Format::kYaml, Format::kJson, Format::kCommentedJson}) {
    EXPECT_THAT(
        document_error("\"ab\xff\"", format), StartsWith("[f:1:4] invalid UTF-8; got byte 0xff"));
    EXPECT_THAT(document_error("\"\xed\xa0\x80\"", format), HasSubstr("invalid UTF-8"));
    EXPECT_THAT(document_error("\"\xc0\xaf\"", format), HasSubstr("invalid UTF-8"));
    EXPECT_THAT(document_error("\"\xf4\x90\x80\x80\"", format), HasSubstr("invalid UTF-8"));
    EXPECT_THAT(document_error("\"\xe2\x82", format), HasSubstr("invalid UTF-8"));
    EXPECT_THAT(
        document_error(std::string("\n1\0 2", 5), format),
        StartsWith("[f:2:2] control character; got byte 0x00"));
    EXPECT_EQ(document_error("\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\"", format), "no error");
  }
}

TEST(Document, DepthIsLimited) {
  const auto nest = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  for (const Format format : {Format::kYaml, Format::kJson, Format::kCommentedJson}) {
    EXPECT_EQ(document_error(nest(kMaxDocumentDepth), format), "no error");
    EXPECT_THAT(
        document_error(nest(kMaxDocumentDepth + 1), format),
        StartsWith("[f:1:65] nested too deep"));
    EXPECT_THAT(document_error(nest(100'000), format), StartsWith("[f:1:65] nested too deep"));
    EXPECT_THAT(document_error(std::string(500'000, '{'), format), StartsWith("[f:1:"));
  }
  std::string lines;
  for (int i = 0; i < 1000; ++i) {
    lines += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  }
  EXPECT_THAT(document_error(lines), HasSubstr("nested too deep"));
}

TEST(Document, AliasesCountAsTheirTargets) {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string alias = "*a" + std::to_string(i - 1);
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + alias;
    for (int j = 1; j < 10; ++j) {
      laughs += ", " + alias;
    }
    laughs += "]\n";
  }
  EXPECT_THAT(document_error(laughs), AllOf(StartsWith("[f:4:"), HasSubstr("too many values")));

  std::string long_text = "a: &a " + std::string(900'000, 'x') + "\nb:\n";
  for (int i = 0; i < 8; ++i) {
    long_text += "- *a\n";
  }
  EXPECT_THAT(document_error(long_text), HasSubstr("too many values"));

  EXPECT_THAT(document_error("a: &x [*x]\n"), HasSubstr("refers to a value that contains it"));
  std::string deep = "a: &x " + std::string(40, '[') + std::string(40, ']') + "\nb: ";
  deep += std::string(40, '[') + "*x" + std::string(40, ']') + "\n";
  EXPECT_THAT(document_error(deep), AllOf(StartsWith("[f:2:"), HasSubstr("nested too deep")));
}

TEST(Document, SizeIsLimited) {
  EXPECT_THAT(
      document_error(std::string(kMaxDocumentBytes + 1, '#')), HasSubstr("expected at most 1 MiB"));
  EXPECT_EQ(document_error(std::string(kMaxDocumentBytes, '#')), "no error");
  std::string many = "[";
  for (size_t i = 0; i < kMaxDocumentNodes; ++i) {
    many += "1,";
  }
  EXPECT_THAT(document_error(many + "1]", Format::kJson), HasSubstr("too many values"));
}

TEST(Json, ValuesKeepTheirTextAndPlace) {
  const Document document = json(
      "{\n"
      "  \"a\": -1.50e+3, \"no\": \"no\",\n"
      "  \"list\" : [true, null, {}, \"\\u00e4\\\"\\n\", \"\\ud83d\\ude00\"]\n"
      "}\n");
  EXPECT_EQ(document.root.find("a")->text, "-1.50e+3");
  EXPECT_EQ(place_of(*document.root.find("a")), "2:8");
  EXPECT_FALSE(document.root.find("a")->quoted);
  EXPECT_TRUE(document.root.find("no")->quoted);
  const Node& list = *document.root.find("list");
  ASSERT_EQ(list.items.size(), 5U);
  EXPECT_EQ(list.items[0].text, "true");
  EXPECT_EQ(list.items[1].kind, Kind::kNull);
  EXPECT_EQ(list.items[2].kind, Kind::kMap);
  EXPECT_EQ(list.items[3].text, "ä\"\n");
  EXPECT_EQ(list.items[4].text, "😀");
  EXPECT_EQ(place_of(list.items[3]), "3:29");
  EXPECT_EQ(place_of(list.items[4]), "3:43");
}

TEST(Json, IsStrict) {
  const auto fault = [](const std::string& text) { return document_error(text, Format::kJson); };
  EXPECT_THAT(fault(""), StartsWith("[f:1:1] invalid JSON"));
  EXPECT_EQ(
      fault("{\"a\": 1,}"),
      "[f:1:8] invalid JSON; got a comma before '}', expected none after the last value; "
      "remove the comma");
  EXPECT_THAT(fault("[1,\n ]"), StartsWith("[f:1:3] invalid JSON; got a comma before ']'"));
  EXPECT_THAT(fault("[1,,]"), HasSubstr("invalid JSON; got an unexpected '"));
  EXPECT_EQ(
      fault("{\n  a: 1}"),
      "[f:2:3] invalid JSON; got the key a in no quotes, expected double quotes; write \"a\"");
  // Words that begin as JSON's own do are read further before they are none.
  for (const std::string key :
       {"train_batch_size", "true", "fp16", "null_key", "nothing", "x-1", "t", "fals"}) {
    EXPECT_THAT(
        fault("{\"a\": {}, " + key + " : 1}"),
        StartsWith("[f:1:11] invalid JSON; got the key " + key + " in no quotes"))
        << key;
  }
  EXPECT_THAT(fault("{'a b': 1, 'c': 2}"), HasSubstr("invalid JSON; got an unexpected '"));
  EXPECT_THAT(
      fault("{'a': 1}"),
      StartsWith("[f:1:2] invalid JSON; got the key a in single quotes, expected double"));
  EXPECT_THAT(fault("[yes]"), HasSubstr("invalid JSON; got an unexpected '"));
  EXPECT_THAT(fault("{\"a\": 1}\n// no\n"), StartsWith("[f:2:1]"));
  EXPECT_THAT(fault("{\"a\": no}"), StartsWith("[f:1:"));
  EXPECT_THAT(fault("{\"a\": 010}"), StartsWith("[f:1:"));
  EXPECT_THAT(fault("{\"a\": [1}"), StartsWith("[f:1:"));
  EXPECT_THAT(fault("{\"a\": 1"), HasSubstr("ends too early"));
  EXPECT_THAT(
      fault("{\"a\": 1,\n \"a\": 2}"),
      StartsWith("[f:2:2] key 'a' is given twice, first in line 1"));
}

TEST(CommentedJson, CommentsAndTrailingCommasCountAsNothing) {
  const Document document = parse_document(
      "ds.json",
      "# head\n"
      "{  // of \"all\"\n"
      "  /* one,\n"
      "     two */ \"a\": 1, # three\n"
      "  \"list\": [1, 2 /* last */ , // end\n"
      "  ],\n"
      "  \"path\": \"http://x#y /* z */, }\",\n"
      "}\n"
      "// the end",
      Format::kCommentedJson);
  EXPECT_EQ(place_of(*document.root.find("a")), "4:18");
  EXPECT_EQ(document.root.find("list")->items.size(), 2U);
  EXPECT_EQ(document.root.find("path")->text, "http://x#y /* z */, }");
  EXPECT_EQ(place_of(*document.root.find("path")), "7:11");
}

TEST(CommentedJson, IsStrictOtherwise) {
  const auto fault = [](const std::string& text) {
    return document_error(text, Format::kCommentedJson);
  };
  EXPECT_THAT(fault(""), StartsWith("[f:1:1] invalid JSON"));
  EXPECT_THAT(fault("{\"a\": 1,, }"), StartsWith("[f:1:9] invalid JSON"));
  EXPECT_THAT(fault("{,}"), StartsWith("[f:1:2] invalid JSON"));
  EXPECT_THAT(fault("[,]"), StartsWith("[f:1:2] invalid JSON"));
  EXPECT_THAT(fault("{\"a\": ,}"), StartsWith("[f:1:7] invalid JSON"));
  EXPECT_THAT(
      fault("{ /* b */ a: 1}"), StartsWith("[f:1:11] invalid JSON; got the key a in no quotes"));
  EXPECT_THAT(fault("{\"a\": 1,\n \"a\": 2}"), StartsWith("[f:2:2] key 'a' is given twice"));
  EXPECT_THAT(fault("{}\n /* open"), StartsWith("[f:2:2] a comment begins here and does not end"));
  EXPECT_THAT(fault("{} /"), StartsWith("[f:1:4] invalid JSON"));
  EXPECT_THAT(fault("{\"a\": \"open # \\\" }"), HasSubstr("invalid JSON"));
}

/// `text` with a few random edits of the kind that finds faults in parsers.
std::string edited(std::string text, std::mt19937& random) {
  const std::string pieces = "{}[]:,-?&*!|>'\"%@`#~\n\t \\0a\r\xff";
  const auto below = [&](size_t end) { return random() % end; };
  const size_t edits = 1 + below(6);
  for (size_t i = 0; i < edits; ++i) {
    const size_t at = below(text.size() + 1);
    const size_t size = std::min<size_t>(text.size() - at, below(12));
    switch (below(4)) {
      case 0:
        text.insert(at, 1, pieces[below(pieces.size())]);
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(below(text.size() + 1), text.substr(at, size));
        break;
      default:
        text.replace(at, size, 1 + below(40), pieces[below(pieces.size())]);
        break;
    }
  }
  return text;
}

TEST(Document, RandomEditsAreReadOrRefusedWithAPlace) {
  const std::string yaml_seed =
      "a: &x [1, {b: 'it''s', \"c\": \"\\u00e4\\n\"}]\nd: *x\ne:\n  - f\n  - |\n    g\n? h\n: >-\n "
      " i\n"
      "#j\nk: ~\n";
  const std::string json_seed = R"({"a": [1, -2.5e3, true, null, {"b": "\u00e4\"\n"}], "c": {}})";
  std::mt19937 random(20'240'607);
  for (int i = 0; i < 20'000; ++i) {
    const Format format = std::array{Format::kYaml, Format::kJson, Format::kCommentedJson}[i % 3];
    const std::string text = edited(format == Format::kYaml ? yaml_seed : json_seed, random);
    const std::string fault = document_error(text, format);
    ASSERT_THAT(fault, AnyOf("no error", MatchesRegex("\\[f:[1-9][0-9]*:[1-9][0-9]*\\] (.|\n)+")))
        << text;
  }
}

TEST(ReadDocument, TellsTheFormatByTheName) {
  const TestFolder folder;
  std::ofstream(folder / "a.json") << "{\"a\": 1,}";
  std::ofstream(folder / "a.yaml") << "{\"a\": 1,}";
  EXPECT_THROW(read_document(folder / "a.json"), ConfigError);
  EXPECT_EQ(read_document(folder / "a.yaml").root.find("a")->text, "1");
  const Document commented = read_document(folder / "a.json", Format::kCommentedJson);
  EXPECT_EQ(commented.root.find("a")->text, "1");
}

TEST(ReadDocument, AnUnreadableFileIsNamed) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { read_document(folder / "absent.yaml"); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("absent.yaml"), HasSubstr("cannot be read; No"))));
  EXPECT_THAT(
      [&] { read_document(folder.path()); },
      ThrowsMessage<ConfigError>(HasSubstr("Is a directory")));
  EXPECT_THAT(
      [] { read_document("/dev/zero"); },
      ThrowsMessage<ConfigError>(HasSubstr("expected at most 1 MiB")));
}

}  // namespace
}  // namespace lockstep::config
