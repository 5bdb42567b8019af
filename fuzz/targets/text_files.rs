#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| millrace_text::fuzz::text_files(data));
