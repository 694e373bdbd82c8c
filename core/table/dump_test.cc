#include "table/dump.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "table/crc32c.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

namespace fs = std::filesystem;
using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::Require;
using testing::RequireOk;
using testing::Test;

// A directory that goes away with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "sparsefleet-dump-XXXXXX").string();
    Require(::mkdtemp(name.data()) != nullptr, "no temporary directory");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  fs::path file(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

constexpr std::uint64_t kDenseSize = 50001;

SparseSpec AdsSpec() {
  SparseSpec spec;
  spec.name = "ads/user id";
  spec.dim = 5;
  spec.optimizer.kind = OptimizerKind::kAdam;
  spec.initializer = {InitializerKind::kNormal, 0, 0.1};
  spec.track_count = spec.track_step = true;
  return spec;
}

DenseSpec WeightsSpec() {
  DenseSpec spec;
  spec.name = "weights";
  spec.size = kDenseSize;
  spec.optimizer.kind = OptimizerKind::kAdam;
  spec.min_block_size = 1000;
  return spec;
}

std::vector<std::unique_ptr<TableSet>> MakeServers(std::uint32_t num_servers) {
  std::vector<std::unique_ptr<TableSet>> servers;
  for (std::uint32_t i = 0; i < num_servers; ++i) {
    servers.push_back(std::make_unique<TableSet>());
    RequireOk(servers[i]->Define(AdsSpec()));
    RequireOk(servers[i]->Define(WeightsSpec(), i, num_servers));
  }
  return servers;
}

void Train(std::vector<std::unique_ptr<TableSet>>& servers, std::uint64_t first_step,
           std::uint64_t last_step) {
  const auto num_servers = static_cast<std::uint32_t>(servers.size());
  for (std::uint64_t step = first_step; step <= last_step; ++step) {
    for (std::uint32_t s = 0; s < num_servers; ++s) {
      std::vector<Key> keys;
      for (Key key = 0; key < 400 * step; ++key) {
        if (OwnerOf(key, num_servers) == s) keys.push_back(key);
      }
      std::vector<float> gradients;
      for (const Key key : keys) {
        gradients.insert(gradients.end(), 5, 0.01F * static_cast<float>(key % 7 + step));
      }
      RequireOk(RequireOk(servers[s]->Sparse("ads/user id"))->Push(keys, gradients, step).status());
      auto dense = RequireOk(servers[s]->Dense("weights"));
      std::vector<float> gradient(dense->size());
      for (std::uint64_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = 0.001F * static_cast<float>((dense->range().begin + i) % 97 + step);
      }
      RequireOk(dense->Push(gradient));
    }
  }
}

// Everything the servers hold, however it is dealt over them.
struct Contents {
  std::map<Key, std::vector<float>> rows;  // values, state, counters
  std::vector<float> dense;
  bool operator==(const Contents&) const = default;
};

Contents ContentsOf(std::vector<std::unique_ptr<TableSet>>& servers) {
  Contents all;
  for (auto& server : servers) {
    auto table = RequireOk(server->Sparse("ads/user id"));
    TableCut cut = table->OpenCut();
    RowBatch batch;
    while (cut.Next(100, batch)) {
      for (std::size_t i = 0; i < batch.keys.size(); ++i) {
        auto& row = all.rows[batch.keys[i]];
        Expect(row.empty(), "two servers hold one key");
        row.assign(batch.values.begin() + i * 5, batch.values.begin() + (i + 1) * 5);
        const std::size_t width = table->state_dim();
        row.insert(row.end(), batch.state.begin() + i * width,
                   batch.state.begin() + (i + 1) * width);
        row.push_back(static_cast<float>(batch.counters[2 * i]));
        row.push_back(static_cast<float>(batch.counters[2 * i + 1]));
      }
    }
    auto dense = RequireOk(server->Dense("weights"));
    std::vector<float> values(dense->size());
    RequireOk(dense->Read(0, values));
    all.dense.insert(all.dense.end(), values.begin(), values.end());
  }
  return all;
}

void SaveServers(std::vector<std::unique_ptr<TableSet>>& servers, const std::string& directory) {
  const auto n = static_cast<std::uint32_t>(servers.size());
  for (std::uint32_t i = 0; i < n; ++i) RequireOk(SaveTables(*servers[i], directory, i, n));
}

void LoadServers(std::vector<std::unique_ptr<TableSet>>& servers, const std::string& directory) {
  const auto n = static_cast<std::uint32_t>(servers.size());
  for (std::uint32_t i = 0; i < n; ++i) RequireOk(LoadTables(*servers[i], directory, i, n));
}

const Test kCrc("the checksum is CRC-32C", [] {
  const std::string text = "123456789";
  ExpectEqual(Crc32c(std::as_bytes(std::span(text))), 0xe3069283U);
  const auto bytes = std::as_bytes(std::span(text));
  ExpectEqual(Crc32c(bytes.subspan(2), Crc32c(bytes.first(2))), 0xe3069283U);
});

const Test kRedeal("a dump loads at any number of servers, and training goes on alike", [] {
  auto two = MakeServers(2);
  Train(two, 1, 4);
  const Contents wanted = ContentsOf(two);
  ExpectEqual(wanted.rows.size(), 1600U);
  TemporaryDirectory from_two;
  SaveServers(two, from_two.path());
  auto three = MakeServers(3);
  Train(three, 1, 6);  // rows that the load must remove
  LoadServers(three, from_two.path());
  Expect(ContentsOf(three) == wanted, "three servers hold something else");
  TemporaryDirectory from_three;
  SaveServers(three, from_three.path());
  auto one = MakeServers(1);
  LoadServers(one, from_three.path());
  Expect(ContentsOf(one) == wanted, "one server holds something else");
  Train(two, 5, 6);
  Train(three, 5, 6);
  Train(one, 5, 6);
  Expect(ContentsOf(three) == ContentsOf(two), "three servers train on otherwise");
  Expect(ContentsOf(one) == ContentsOf(two), "one server trains on otherwise");
});

std::vector<char> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void WriteFile(const fs::path& path, const std::vector<char>& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

const Test kCorruption("a damaged, cut or lengthened file is refused and changes nothing", [] {
  auto servers = MakeServers(2);
  Train(servers, 1, 1);
  TemporaryDirectory directory;
  SaveServers(servers, directory.path());
  auto loaded = MakeServers(1);
  Train(loaded, 1, 2);
  const Contents before = ContentsOf(loaded);
  for (const std::string name : {"ads%2Fuser%20id.1-of-2.sfd", "weights.0-of-2.sfd"}) {
    const fs::path path = directory.file(name);
    const std::vector<char> good = ReadFile(path);
    Require(good.size() > 1000, "the file is not where it should be");
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{13}, std::size_t{62}, good.size() / 2, good.size() - 1}) {
      std::vector<char> bad = good;
      bad[at] ^= 0x10;
      WriteFile(path, bad);
      ExpectCode(LoadTables(*loaded[0], directory.path(), 0, 1), Code::kCorrupt);
    }
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{30}, good.size() / 2, good.size() - 16, good.size() - 1}) {
      WriteFile(path, std::vector<char>(good.begin(), good.begin() + length));
      ExpectCode(LoadTables(*loaded[0], directory.path(), 0, 1), Code::kCorrupt);
    }
    std::vector<char> longer = good;
    longer.push_back(0);
    WriteFile(path, longer);
    const Status status = LoadTables(*loaded[0], directory.path(), 0, 1);
    ExpectCode(status, Code::kCorrupt);
    Expect(status.message().find(name) != std::string::npos, "the file is not named");
    WriteFile(path, good);
  }
  Expect(ContentsOf(loaded) == before, "a refused load changed a table");
  RequireOk(LoadTables(*loaded[0], directory.path(), 0, 1));
});

const Test kMissing("missing files, mixed sets and other shapes are told apart", [] {
  auto servers = MakeServers(2);
  Train(servers, 1, 1);
  TemporaryDirectory directory;
  ExpectCode(LoadTables(*servers[0], directory.path(), 0, 2), Code::kNotFound);
  ExpectCode(LoadTables(*servers[0], directory.path() + "/none", 0, 2), Code::kNotFound);
  SaveServers(servers, directory.path());

  TableSet other;
  SparseSpec spec = AdsSpec();
  spec.dim = 6;
  RequireOk(other.Define(spec));
  ExpectCode(LoadTables(other, directory.path(), 0, 1), Code::kShapeMismatch);
  TableSet sgd;
  spec = AdsSpec();
  spec.optimizer.kind = OptimizerKind::kSgd;
  RequireOk(sgd.Define(spec));
  ExpectCode(LoadTables(sgd, directory.path(), 0, 1), Code::kShapeMismatch);

  // A file under another server's name.
  const auto first = ReadFile(directory.file("weights.0-of-2.sfd"));
  const auto second = ReadFile(directory.file("weights.1-of-2.sfd"));
  WriteFile(directory.file("weights.1-of-2.sfd"), first);
  ExpectCode(LoadTables(*servers[0], directory.path(), 0, 2), Code::kCorrupt);
  WriteFile(directory.file("weights.1-of-2.sfd"), second);

  fs::remove(directory.file("weights.1-of-2.sfd"));
  const Status status = LoadTables(*servers[0], directory.path(), 0, 2);
  ExpectCode(status, Code::kNotFound);
  Expect(status.message().find("weights.1-of-2.sfd") != std::string::npos, status.message());
  WriteFile(directory.file("weights.0-of-3.sfd"), first);
  ExpectCode(LoadTables(*servers[0], directory.path(), 0, 2), Code::kCorrupt);
  ExpectCode(LoadTables(*servers[0], directory.path(), 2, 2), Code::kInvalidArgument);
});

const Test kNames("any legal table name makes a file, and no temporary stays", [] {
  TemporaryDirectory directory;
  TableSet tables;
  for (const std::string& name : {std::string("../up"), std::string("."), std::string(255, '/'),
                                  std::string(255, 'x'), std::string("caf\xc3\xa9")}) {
    SparseSpec spec;
    spec.name = name;
    spec.dim = 1;
    RequireOk(tables.Define(spec));
  }
  RequireOk(SaveTables(tables, directory.path() + "/made/below", 0, 1));
  RequireOk(SaveTables(tables, directory.path() + "/made/below", 0, 1));
  RequireOk(LoadTables(tables, directory.path() + "/made/below", 0, 1));
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(directory.path() + "/made/below")) {
    ++files;
    ExpectEqual(entry.path().extension().string(), ".sfd");
  }
  ExpectEqual(files, 5U);
});

const Test kUnwritable("a directory that cannot be made is an I/O error", [] {
  TemporaryDirectory directory;
  WriteFile(directory.file("file"), {'x'});
  TableSet tables;
  ExpectCode(SaveTables(tables, directory.file("file").string(), 0, 1), Code::kIo);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
