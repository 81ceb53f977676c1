// What the ranks of one host tell each other goes through memory that all of them see. Through sockets it is copied
// four times, in pieces, each of which wakes a thread: most of what an exchange of gradients took from a rank's core.
//
// What a rank says lies in its part of the memory until all have read it. Only at a barrier does the kernel take part:
// a rank that must wait sleeps on a futex, and looks now and then whether the one it waits for is alive. Every rank
// holds a robust mutex for that, which Linux marks when a thread ends, in whatever way.

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "gloo/allreduce.h"
#include "gloo/broadcast.h"
#include "gloo/common/error.h"
#include "gloo/context.h"
#include "gloo/math.h"

namespace gloo {

// All ranks of a context call the same methods in the same order, each from one thread, which also makes and deletes
// the object. That they do is checked among these methods; what goes through sockets meanwhile is not known here.
class SharedMemory {
 public:
  using Reduce = AllreduceOptions::Func;

  // What each rank can say in one exchange.
  static constexpr size_t SMALL_BYTES = 64 * 1024;

  enum Operation : uint64_t { GATHER, BROADCAST, ALLREDUCE };

  // Whether a message takes recursive doubling, where it goes through sockets.
  static bool isDoubled(size_t bytes, size_t ranks) {
    return bytes <= 256 * 1024 && (ranks & (ranks - 1)) == 0;
  }

  // Null, on all ranks, where some of them do not see the others' memory (they are on another host, in another
  // container, another user's), where there is too little of it, and for one rank or more than MAX_RANKS.
  static std::shared_ptr<SharedMemory> create(const std::shared_ptr<Context>& context) {
    const size_t ranks = context->size;
    if (ranks == 1 || ranks > MAX_RANKS) {
      return nullptr;
    }
    // A name that nobody has by chance: who can open it sees the same memory.
    char name[64] = {};
    File file;
    if (context->rank == 0) {
      std::random_device random;
      snprintf(name, sizeof(name), "/dev/shm/gloo-%08x%08x%08x%08x", random(), random(), random(), random());
      file.number = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      file.nameToRemove = file.number >= 0 ? name : "";
    }
    BroadcastOptions options(context);
    options.setOutput(name, sizeof(name));
    options.setRoot(0);
    broadcast(options);
    if (context->rank != 0) {
      file.number = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    bool usable = allCan(context, file.number >= 0);
    const size_t partBytes = std::min(CHUNK_BYTES, ALL_CHUNKS_BYTES / ranks) / ranks / BLOCK_BYTES * BLOCK_BYTES;
    const size_t bytes = ranks * (sizeof(Rank) + 2 * SMALL_BYTES + ranks * partBytes);
    if (context->rank == 0) {
      // As long as it has a name it is empty: whoever is killed leaves no more than that.
      file.removeName();
      usable = usable && file.reserve(bytes);
    }
    usable = allCan(context, usable);
    void* memory = usable ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0) : MAP_FAILED;
    std::shared_ptr<SharedMemory> made;
    if (memory != MAP_FAILED) {
      made.reset(new SharedMemory(*context, static_cast<uint8_t*>(memory), bytes, partBytes));
    }
    return allCan(context, made != nullptr && made->usable_) ? made : nullptr;
  }

  ~SharedMemory() {
    if (usable_) {
      pthread_mutex_unlock(&ranks_[rank_].alive);
    }
    munmap(memory_, bytes_);
  }

  // What rank r said begins at r * SMALL_BYTES, until the next exchange but one. Some may have nothing to say.
  const uint8_t* exchange(Operation operation, size_t bytes, const void* said) {
    uint8_t* all = messages_[turn_];
    turn_ = 1 - turn_;
    if (said != nullptr) {
      std::memcpy(all + rank_ * SMALL_BYTES, said, bytes);
    }
    barrier(operation, bytes);
    return all;
  }

  // In place. Of sums and products all ranks have the same bits, those that they would have on several hosts.
  void allreduce(void* data, size_t elements, size_t elementSize, const Reduce& reduce) {
    const Message message{static_cast<uint8_t*>(data), elements * elementSize, elementSize, reduce};
    if (message.bytes <= SMALL_BYTES) {
      const uint8_t* all = exchange(ALLREDUCE, message.bytes, data);
      addUp(message, 0, message.bytes, message.data, [&](size_t r) { return all + r * SMALL_BYTES; });
      return;
    }
    const size_t most = partBytes_ / elementSize * elementSize * size_;
    for (size_t done = 0; done < message.bytes; done += most) {
      reduceChunk(message, done, std::min(most, message.bytes - done));
    }
  }

 private:
  static constexpr size_t CHUNK_BYTES = 2 << 20; // of each rank, reduced at a time
  static constexpr size_t ALL_CHUNKS_BYTES = 16 << 20; // at most: containers often have 64 MB in all
  static constexpr size_t BLOCK_BYTES = 4096; // reduced while a core's first cache has them
  static constexpr size_t MAX_ROUNDS = 6; // of a barrier
  static constexpr size_t MAX_RANKS = 1 << MAX_ROUNDS;
  static_assert(ALL_CHUNKS_BYTES / MAX_RANKS / MAX_RANKS >= BLOCK_BYTES, "a part has no room");

  struct alignas(128) Rank {
    pthread_mutex_t alive;
    std::atomic<uint32_t> arrived[MAX_ROUNDS]; // the last barrier that a round's sender came to
    uint64_t doing[2]; // what it came to the last two barriers for: at the second, all have seen the first
  };

  struct File {
    int number = -1;
    std::string nameToRemove;

    ~File() {
      removeName();
      if (number >= 0) {
        close(number);
      }
    }

    void removeName() {
      if (!nameToRemove.empty()) {
        unlink(nameToRemove.c_str());
        nameToRemove.clear();
      }
    }

    // In memory, and not more than half of what is there: other programs want some, too. (Beyond a limit on files Linux
    // sends SIGXFSZ, which Python ignores.)
    bool reserve(size_t bytes) const {
      struct statfs all;
      if (fstatfs(number, &all) != 0 || all.f_type != TMPFS_MAGIC) {
        return false;
      }
      if (all.f_blocks > 0 && all.f_bavail * all.f_bsize < 2 * bytes) { // 0: as much as one likes
        return false;
      }
      int error;
      do {
        error = posix_fallocate(number, 0, bytes);
      } while (error == EINTR);
      return error == 0;
    }
  };

  SharedMemory(Context& context, uint8_t* memory, size_t bytes, size_t partBytes)
      : context_(context),
        rank_(context.rank),
        size_(context.size),
        timeout_(context.getTimeout()),
        memory_(memory),
        bytes_(bytes),
        ranks_(reinterpret_cast<Rank*>(memory)),
        messages_{memory + size_ * sizeof(Rank), memory + size_ * (sizeof(Rank) + SMALL_BYTES)},
        parts_(memory + size_ * (sizeof(Rank) + 2 * SMALL_BYTES)),
        partBytes_(partBytes) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    usable_ = pthread_mutex_init(&ranks_[rank_].alive, &attributes) == 0 &&
        pthread_mutex_lock(&ranks_[rank_].alive) == 0;
    pthread_mutexattr_destroy(&attributes);
  }

  struct Message {
    uint8_t* const data;
    const size_t bytes;
    const size_t elementSize;
    const Reduce& reduce;
  };

  // Reduce-scatter, then allgather (Thakur, Rabenseifner and Gropp, 2005): rank r adds up the r-th part of all.
  void reduceChunk(const Message& message, size_t start, size_t bytes) {
    const size_t elements = bytes / message.elementSize;
    const size_t partSize = (elements + size_ - 1) / size_ * message.elementSize;
    auto begin = [&](size_t r) { return start + std::min(r * partSize, bytes); };
    auto length = [&](size_t r) { return begin(r + 1) - begin(r); };
    for (size_t r = 0; r < size_; ++r) {
      if (r != rank_) {
        std::memcpy(part(rank_, r), message.data + begin(r), length(r));
      }
    }
    barrier(ALLREDUCE, message.bytes);
    uint8_t* own = message.data + begin(rank_);
    addUp(message, begin(rank_), length(rank_), part(rank_, rank_), [&](size_t r) -> const uint8_t* {
      return r == rank_ ? own : part(r, rank_);
    });
    std::memcpy(own, part(rank_, rank_), length(rank_));
    barrier(ALLREDUCE, message.bytes);
    for (size_t r = 0; r < size_; ++r) {
      if (r != rank_) {
        std::memcpy(message.data + begin(r), part(r, r), length(r));
      }
    }
  }

  // To sums[0..bytes) what the ranks have, from(r)[0..bytes), of a message from start on. Which two are added first
  // is what sockets would do, so that a run has the same bits wherever its ranks are: in allreduce.cc, a small message
  // goes by recursive doubling; of others, the c-th part goes around the ring, from rank c - 1 down to c.
  template <typename From>
  void addUp(const Message& message, size_t start, size_t bytes, uint8_t* sums, const From& from) {
    const bool doubling = isDoubled(message.bytes, size_);
    const size_t ringPart = ringPartBytes(message);
    const size_t block = BLOCK_BYTES / message.elementSize * message.elementSize;
    for (size_t at = 0; at < bytes;) {
      const size_t c = (start + at) / ringPart;
      const size_t length = std::min({block, bytes - at, doubling ? block : (c + 1) * ringPart - start - at});
      const size_t elements = length / message.elementSize;
      if (doubling) {
        addUpPairs(message, elements, sums + at, [&](size_t r) { return from(r) + at; }, 0, size_);
      } else {
        auto around = [&](size_t i) { return from((c + 2 * size_ - 1 - i) % size_) + at; };
        message.reduce(sums + at, around(1), around(0), elements);
        for (size_t i = 2; i < size_; ++i) {
          message.reduce(sums + at, around(i), sums + at, elements);
        }
      }
      at += length;
    }
  }

  template <typename From>
  void addUpPairs(
      const Message& message, size_t elements, uint8_t* sums, const From& from, size_t first, size_t ranks) {
    if (ranks == 2) {
      message.reduce(sums, from(first), from(first + 1), elements);
      return;
    }
    alignas(64) uint8_t others[BLOCK_BYTES];
    addUpPairs(message, elements, sums, from, first, ranks / 2);
    addUpPairs(message, elements, others, from, first + ranks / 2, ranks / 2);
    message.reduce(sums, sums, others, elements);
  }

  // As in ring, in allreduce.cc.
  size_t ringPartBytes(const Message& message) const {
    const size_t most = detail::AllreduceOptionsImpl::kMaxSegmentSize / message.elementSize * message.elementSize;
    const size_t segments = roundUp(std::max((message.bytes + most - 1) / most, 2 * size_), size_);
    return segments / size_ * roundUp((message.bytes + segments - 1) / segments, message.elementSize);
  }

  // What one rank wrote for the sum of a part, or, of its own, the sum.
  uint8_t* part(size_t writer, size_t number) {
    return parts_ + (writer * size_ + number) * partBytes_;
  }

  // Returns when all ranks have called it (Hensgen, Finkel and Manber, 1988, "Two algorithms for barrier
  // synchronization": in each round everyone tells one other, twice as far away).
  void barrier(Operation operation, size_t bytes) {
    if (!usable_) {
      GLOO_THROW_IO_EXCEPTION("An exchange with the ranks of this host has failed before");
    }
    ++barrier_;
    auto doing = [this](size_t r) -> uint64_t& { return ranks_[r].doing[barrier_ % 2]; };
    doing(rank_) = bytes << 2 | operation;
    size_t round = 0;
    for (size_t distance = 1; distance < size_; distance *= 2, ++round) {
      auto& theirs = ranks_[(rank_ + distance) % size_].arrived[round];
      theirs.store(barrier_);
      syscall(SYS_futex, &theirs, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      await(ranks_[rank_].arrived[round], (rank_ + size_ - distance) % size_);
    }
    for (size_t r = 0; r < size_; ++r) {
      if (doing(r) != doing(rank_)) {
        fail(MakeString("Rank ", r, " on this host came for ", describe(doing(r)), ", not ", describe(doing(rank_))));
      }
    }
  }

  void await(std::atomic<uint32_t>& arrived, size_t sender) {
    const timespec slice{0, 100 * 1000 * 1000};
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    auto missing = [&] { return static_cast<int32_t>(arrived.load() - barrier_) < 0; };
    while (missing()) {
      syscall(SYS_futex, &arrived, FUTEX_WAIT, barrier_ - 1, &slice, nullptr, 0);
      if (missing() && !alive(sender) && missing()) { // it may have come, and ended, between the first two
        fail(MakeString("Rank ", sender, " on this host has ended, or failed"));
      }
      if (missing() && std::chrono::steady_clock::now() > deadline) {
        fail(MakeString("Timed out waiting ", timeout_.count(), "ms for rank ", sender, " on this host"));
      }
    }
  }

  static std::string describe(uint64_t doing) {
    static const char* const names[] = {"a gather", "a broadcast", "an allreduce"};
    return MakeString(names[doing & 3], " of ", doing >> 2, " bytes");
  }

  // Whoever waits for this rank, here or at a socket, shall not wait any longer.
  [[noreturn]] void fail(const std::string& why) {
    usable_ = false;
    pthread_mutex_unlock(&ranks_[rank_].alive);
    context_.closeConnections();
    GLOO_THROW_IO_EXCEPTION(why);
  }

  bool alive(size_t r) {
    const int error = pthread_mutex_trylock(&ranks_[r].alive);
    if (error == EBUSY) {
      return true;
    }
    if (error == EOWNERDEAD) { // else it is lost with this unlock: glibc's trylock then keeps it, and says it did not
      pthread_mutex_consistent(&ranks_[r].alive);
    }
    if (error == 0 || error == EOWNERDEAD) {
      pthread_mutex_unlock(&ranks_[r].alive); // others will ask, too
    }
    return false;
  }

  static bool allCan(const std::shared_ptr<Context>& context, bool can) {
    int least = can;
    AllreduceOptions options(context);
    options.setOutput(&least, 1);
    void (*reduce)(void*, const void*, const void*, size_t) = &min<int>;
    options.setReduceFunction(Reduce(reduce));
    gloo::allreduce(options);
    return least;
  }

  Context& context_;
  const size_t rank_;
  const size_t size_;
  const std::chrono::milliseconds timeout_;
  uint8_t* const memory_;
  const size_t bytes_;
  Rank* const ranks_;
  uint8_t* const messages_[2];
  uint8_t* const parts_;
  const size_t partBytes_;
  int turn_ = 0;
  uint32_t barrier_ = 0;
  bool usable_ = false; // this rank holds its mutex, and nothing has failed
};

} // namespace gloo
