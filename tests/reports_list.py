"""The reports that docs/robustness.md answers: number -> source, symptom, and a reason where no test can apply."""

from reports import Report

_FLWR = "observed with flwr 1.42"
_HE = "observed with tenseal 0.3.18 and openfhe 1.6.1"

REPORTS: dict[str, Report] = {
    # ------------------------------------------------------------------------------------------- arithmetic
    "U1": Report(
        "TenSEAL#300, #216, #241, #78, #397; SEAL#406",
        "`scale out of bounds` deep inside a call, after one multiplication too many for the modulus chain",
        "no protection multiplies ciphertexts (weights are applied before sealing), so no chain can be too short for "
        "a depth; U2 has what is left, the headroom of sums",
    ),
    "U2": Report("fedbiomed#1210 (same kind)", "a sum of many clients wraps around without an error"),
    "U3": Report("TenSEAL#355", "a modulus changed from 28 to 29 bits gives a wrong sum"),
    "U7": Report("TenSEAL#504", "wrong values where a vector's length crosses the number of slots"),
    "U8": Report("TenSEAL#453", "adding ciphertexts of two keys gives garbage"),
    "U9": Report("SEAL-Python#107; TenSEAL#411", "scales or levels that differ fail deep in the library, or silently"),
    "U10": Report("TenSEAL#449, #398, #36; SEAL#224", "a zero in the plaintext makes a later operation fail"),
    "U11": Report("TenSEAL#150", "an error in a worker thread ends the process by a segmentation fault"),
    "U12": Report("openfhe-development#615", "adding a plaintext is wrong in one scaling mode"),
    "U13": Report("openfhe-development (forum)", "one changed bit decrypts to garbage, or is found at decoding only"),
    "U15": Report("openfhe-python#50; openfhe-development#751", "threshold decryption did not run, or used wrong keys"),
    "U16": Report("openfhe-development#996", "key generation ends with an allocation failure"),
    "U17": Report(_HE, "one client's NaN encrypts, and the whole round dies when it is opened"),
    # ------------------------------------------------------------------------------------------- keys and size
    "U18": Report("TenSEAL#107, #188, #130, #224, #438", "the secret key travels with the context by default"),
    "U19": Report("FedML's package", "a key lies in the published package, the same for everybody"),
    "U20": Report("TenSEAL#258, #206", "a public context of 95 MB"),
    "U21": Report("TenSEAL#429, #387", "5,609 numbers become 1.7 GB"),
    "U22": Report(
        "NVFlare#2687", "a warning for each layer that is larger than the slots, and a ciphertext per tensor"
    ),
    "U23": Report("TenSEAL#454, #307; openfhe-python#129", "ciphertexts and contexts cannot be pickled"),
    "U24": Report("TenSEAL#476", "encrypting for 8 clients works for two and then hangs"),
    "U25": Report("PySyft#5404; TenSEAL#407", "the library's thread pool breaks or slows down worker processes"),
    "U26": Report(
        "TenSEAL#416, #463, #494, #483, #531; openfhe-python#249", "no wheel for a Python, or one that does not import"
    ),
    # ------------------------------------------------------------------------------------------- secure sums in FL
    "U27": Report("NVFlare#1959, #1924, #1970", "encryption cannot be tried in the simulator"),
    "U28": Report("FedML#108, #1122, #1740", "the paper's method is in the README and not in the code"),
    "U29": Report("flower PR#4982", "values beyond the clipping range are cut without a word"),
    "U30": Report(
        "fedbiomed#1210", "secure aggregation fails from ten nodes on: value and weight bits exceed the ring"
    ),
    "U33": Report("yacl#237", "signs and the edges of the domain of a distributed point function"),
    "U34": Report("libfss#5", "the last bit of the point is ignored"),
    "U35": Report("sycret#60", "only one point can be evaluated at a time"),
    "U36": Report("draft-irtf-cfrg-vdaf PR#88", "servers with different correction words let a client hit two points"),
    "U37": Report("libprio#60", "the check's random point comes from a set that can leak"),
    "U39": Report(
        "shamirs#2; pybtc#78; celo-threshold-bls-rs#206",
        "a threshold off by one; too few or repeated shares give a wrong secret without an error",
    ),
    "U39b": Report(_FLWR, "a mask's seed is folded to 32 bits by XOR, so different seeds give equal masks"),
    "U40": Report("FATE#56", "too slow, and the length of the key is unclear"),
    # ------------------------------------------------------------------------------------------- aggregation
    "U41": Report(
        "flower#7645, #7693, #7708, PR#7646", "clients that report 0 samples make the model NaN, or crash it"
    ),
    "U42": Report("flower#4344, #611, #3237, PR#886, PR#7538", "a 0-d counter of BatchNorm comes back with shape [0]"),
    "U43": Report(_FLWR, "an int64 buffer is averaged to 0"),
    "U44": Report("PFLlib#260, #269", "BatchNorm's statistics are those of one client"),
    "U46": Report("flower PR#7631", "clipping an update of norm zero divides by zero"),
    "U48": Report("NVFlare PR#3273; FATE 2.1.1", "bfloat16 has no numpy type"),
    "U49": Report("flower#3443, #3951; NVFlare PR#4659; fedbiomed#289", "a metric of numpy's float32 is refused"),
    "U50": Report(
        "flower#4361, #3084; ultralytics#9554", "a model's arrays change between rounds and a later step fails"
    ),
    "U51": Report(
        f"NVFlare PR#4875; {_FLWR}",
        "an array that one client left out is halved, dropped or broadcast to another shape",
    ),
    "U52": Report("flower PR#8083", "a round that timed out is averaged as if all had replied"),
    "U54": Report("flame#95", "a sum is not emptied between rounds"),
    "U55": Report("ipex-llm PR#4602", "the order of arrival decides the result"),
    "U56": Report(_FLWR, "float16 values times a number of samples overflow to NaN"),
    "U57": Report("observed with torch", "tied weights are sent twice, or come back apart"),
    "U58": Report("observed with tenseal 0.3.18", "strided or big-endian arrays are read wrongly or refused"),
    "U59": Report("APPFL#360; NVFlare PR#4019", "the server keeps a copy of the model for each client"),
    # ------------------------------------------------------------------------------------------- simulation
    "U60": Report("flower#5855, #3238, #3159, #2758, #4277", "every bug of a client ends in one generic crash message"),
    "U61": Report("flower#1152; ray#31961", "memory rises over repeated simulations"),
    "U62": Report("flower#3328, #1845", "the same seed gives another order of clients and another result"),
    "U63": Report("flower#3548, #7321, #1484", "clients cannot differ in speed"),
    "U64": Report("flower#1827, #694; plato PR#150", "nobody knows what was really sent"),
    "U65": Report("flower#599; NVFlare#242; fedbiomed#39", "a crash loses the run"),
    "U67": Report("ray#369, #5592, #9673", "arrays out of the object store cannot be written to"),
    "U68": Report("ray PR#14451, #14616; llmaz#238", "64 MB of shared memory in a container"),
    "U69": Report("flower PR#3989", "a simulation without Ray is wanted"),
    "U70": Report("NVFlare#2166; FLIP#618", "memory climbs for hours"),
    "U71": Report(
        "FlowerMonthly#1",
        "a tiny model runs out of memory on an 80 GB GPU",
        "training uses the processor only; there is no GPU memory to hold",
    ),
    # ------------------------------------------------------------------------------------------- data
    "U72": Report("PFLlib#130", "partitioning 500 clients at alpha 0.3 never ends"),
    "U73": Report("observed with flwr-datasets 0.6.1", "small alphas end in an error, or leave half the clients empty"),
    "U75": Report("FedML#175", "a client without samples divides by zero"),
    "U76": Report(
        "opacus#161, #676; FL4Health#114",
        "Poisson sampling of examples draws an empty batch and crashes",
        "no training samples examples by Poisson's law: noise is added to the sum of clients, and a batch has at least "
        "one example",
    ),
    # ------------------------------------------------------------------------------------------- deployment
    "U78": Report("flower#6250", "a client without the server's address retries for ever and says nothing"),
    "U79": Report("flower PR#3231, PR#7221", "containers that only work for one user or on one system"),
    "U80": Report("KubeFATE#178, #778; FATE#5731", "containers restart in a loop"),
    "U81": Report("flower#3006, PR#3236, PR#5301; APPFL#164; FATE#4944", "messages beyond 4 MB, 512 MB or 2 GB fail"),
    "U82": Report("flower#775, #4300, #3234; FL4Health#280; PaddleFL#65", "dead clients stall all, idle ones are cut"),
    "U83": Report("observed with Flower's compose files", "two services play the same client"),
    # ------------------------------------------------------------------------------------------- what we ran into
    "T1": Report(_FLWR, "averaging in place turns int64 10 and 30 into 0"),
    "T2": Report(_FLWR, "shapes that differ are broadcast, negative weights are taken"),
    "T3": Report(_FLWR, "float16 x 60,000 samples is NaN"),
    "T4": Report(_FLWR, "another order of 1,000 clients moves the mean by 2e-7"),
    "T5": Report(_HE, "16 x 100.0 on chain [40,40] at scale 2^30 opens as -448"),
    "T6": Report(_HE, "a flipped bit opens as 8e19 without an error"),
    "T7": Report(_HE, "a sum of two keys opens as 1e31 without an error"),
    "T8": Report(_HE, "one library refuses NaN when it encrypts, the other when the whole round is opened"),
    "T9": Report("openfhe's wheels", "a wheel for any Python 3 that holds a module for one of them"),
    "T10": Report(_FLWR, "masks from a general-purpose generator with 32 bits of seed"),
    "T11": Report("pycryptodome", "a package `Crypto` beside ours, `crypto`, on disks that ignore case"),
    # ------------------------------------------------------------------------------------------- drills
    "D1": Report("drill `faults.drop_before`, `dropout`", "a client is lost before it trains"),
    "D2": Report("drill `faults.drop_during`", "a client's connection breaks while it sends"),
    "D3": Report("drill `faults.drop_after`", "a client is gone after its update was delivered"),
    "D4": Report("drill `faults.slow`", "a client is many times slower than the others"),
    "D5": Report("drill `faults.duplicate`", "a client's reply arrives twice"),
    "D6": Report("drill `faults.stale`", "a client sends the update of its last round again"),
    "D7": Report("drill `faults.corrupt`", "one bit of an update is flipped on its way"),
    "D8": Report("drill `faults.nan`", "a client's training ends in NaN"),
    "D9": Report("drill `faults.wrong_key`", "a client seals under a key of its own"),
    "D10": Report("drill `faults.lie`", "a client states more examples than it has"),
    "D11": Report("drill: killed worker", "the process that runs a client is killed"),
    "D12": Report("drill: killed helper", "PREAMBLE's second aggregator dies in the middle of a run"),
    "D13": Report("drill: silent member", "a member of the decryption committee does not answer"),
    "D14": Report("drill: model replacement", "a client sends a change a thousand times too long"),
    "D15": Report("drill: damaged files", "checkpoints, ledgers, settings or messages are damaged"),
    "D16": Report("drill: interrupt", "Ctrl-C or SIGTERM at any moment"),
    "D17": Report("drill: full disk", "the disk fills up in the middle of a run"),
    "D18": Report("drill: two at once", "two runs take one folder, or two clients one number"),
    "D19": Report(
        "drill: rough use", "settings of a megabyte or without end, nested a thousand times, with zero characters"
    ),
}
