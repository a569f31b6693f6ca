"""A GGUF model with its weights in F32, everything else as it is, so that llama.cpp multiplies without rounding what it multiplies with.

    widen.py FROM TO
"""

import sys

import gguf


def main():
    source, to = sys.argv[1:]
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, inner = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = int(gguf.LlamaFileType.ALL_F32) if name == "general.file_type" else field.contents()
        writer.add_key_value(name, value, kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
